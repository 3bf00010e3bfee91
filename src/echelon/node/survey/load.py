"""Read the present load of the devices from their driver."""

import os
from typing import Dict, Mapping, Sequence

from ...topology import files, pci
from .health import ask_rows
from .nouns import Device

_PCI = "sys/bus/pci/devices"


def percentages(root: str, devices: Sequence[Device], environ: Mapping[str, str]) -> Dict[int, int]:
    """Return the load by device number, 0 to 100; devices with unknown load are left out."""
    if not devices:
        return {}
    loads = _amd(root, devices) if devices[0].vendor == "amd" else _nvidia(devices, environ)
    return {number: percent for number, percent in loads.items() if 0 <= percent <= 100}


def _amd(root: str, devices: Sequence[Device]) -> Dict[int, int]:
    places = {device.number: os.path.join(root, _PCI, device.pci, "gpu_busy_percent") for device in devices}
    return {number: files.number(files.text(path)) for number, path in places.items()}


def _nvidia(devices: Sequence[Device], environ: Mapping[str, str]) -> Dict[int, int]:
    """Ask nvidia-smi, which does not know the load of a MIG device."""
    rows = ask_rows("--query-gpu=pci.bus_id,utilization.gpu", environ)
    of_card = {pci.normal(row[0]): files.number(row[1]) for row in rows if len(row) == 2}
    return {device.number: of_card.get(device.pci, -1) for device in devices}
