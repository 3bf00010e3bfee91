"""Read the health of AMD's devices from sysfs and from KFD."""

import os
from collections.abc import Sequence

from .. import files
from ..answers import Device, Health, Healths
from . import kfd
from .sampling import MOST_BYTES, parse

_PCI = "sys/bus/pci/devices"
_PROCESSES = "sys/class/kfd/kfd/proc"
_THROTTLE_BITS = {  # of the kernel's amdgpu_smu.h
    "it is too hot": sum(1 << bit for bit in range(32, 46)),  # TEMP_GPU to VRHOT1
    "the board says that it is too hot": 1 << 46 | 1 << 47,  # PROCHOT_CPU and PROCHOT_GFX
}


def read(root: str, devices: Sequence[Device]) -> Healths:
    """Return the health by the driver's files."""
    users = _users(root)
    healths = []
    for address in dict.fromkeys(device.pci for device in devices if device.pci):
        folder = os.path.join(root, _PCI, address)
        corrected, uncorrected = _ras(os.path.join(folder, "ras"))
        healths.append(
            Health(
                pci=address,
                used_bytes=files.number(files.text(os.path.join(folder, "mem_info_vram_used"))),
                corrected=corrected,
                uncorrected=uncorrected,
                pending="",
                throttled=tuple(_throttled(os.path.join(folder, "gpu_metrics"))),
                pcie_width=files.number(files.text(os.path.join(folder, "current_link_width"))),
                pcie_width_most=files.number(files.text(os.path.join(folder, "max_link_width"))),
                processes=tuple(users.get(address, ())),
            )
        )
    return Healths(tuple(healths), "sysfs of amdgpu")


def _throttled(path: str) -> list[str]:
    """Return why the firmware throttles an AMD device, from the bits that do not depend on the chip."""
    try:
        with open(path, "rb") as file:
            status = parse(file.read(MOST_BYTES)).status or 0
    except OSError:
        return []
    return [why for why, mask in _THROTTLE_BITS.items() if status & mask]


def _ras(folder: str) -> tuple[int, int]:
    """Add up the errors of all blocks; -1 without counters.

    umc_err_count holds the lines "ue: 0" and "ce: 12"
    """
    counts: dict[str, int] = {}
    for name in files.names(folder):
        if name.endswith("_err_count"):
            for line in files.text(os.path.join(folder, name)).splitlines():
                kind, _, value = line.partition(":")
                counts[kind.strip()] = counts.get(kind.strip(), 0) + files.number(value.strip(), 0)
    return counts.get("ce", -1), counts.get("ue", -1)


def _users(root: str) -> dict[str, list[str]]:
    """Return the processes that use memory of a device, by its PCI address."""
    address_of = kfd.addresses_by_id(root)
    users: dict[str, list[str]] = {}
    for pid in files.numbers(os.path.join(root, _PROCESSES)):
        for name in files.names(os.path.join(root, _PROCESSES, str(pid))):
            used = files.number(files.text(os.path.join(root, _PROCESSES, str(pid), name)), 0)
            if name.startswith("vram_") and used > 0 and name[5:] in address_of and pid != os.getpid():
                command = files.text(os.path.join(root, "proc", str(pid), "comm"))
                users.setdefault(address_of[name[5:]], []).append(("%d %s" % (pid, command)).strip())
    return users
