"""Sample a node: all its devices and the host."""

import os
from typing import Any, Callable, Dict, List, Mapping, Sequence

from ....topology.cpu_lists import parse_cpu_list
from ..nouns import Device, Survey
from .amd import AmdReader
from .host import HostReader
from .load import Load
from .packages import Packages
from .reading import Reading

Readings = Callable[[], Dict[int, Reading]]
"""Return the state by device number; a device without a new state is left out."""


class Sampler:
    """What was seen of a node so far."""

    def __init__(self, root: str, survey: Survey, environ: Mapping[str, str], now: float) -> None:
        devices = [device for device in survey.devices.devices if device.is_visible]
        self._read = _reader(root, devices, environ)
        self._packages = Packages(devices)
        self._loads: Dict[int, Load] = {}
        self._host = HostReader(root, _cpus(root, survey), now)
        self.look(now)

    def look(self, now: float) -> None:
        """Take a sample; `now` is in seconds of a clock that is never set."""
        for number, reading in self._packages.count_once(self._read()).items():
            if number in self._loads or not reading.is_empty:
                self._loads.setdefault(number, Load(number)).note(now, reading)
        self._host.look()

    @property
    def sees_nothing(self) -> bool:
        """Say whether this node shows neither a device nor itself."""
        return not self._loads and self._host.sees_nothing

    def message(self, now: float) -> Dict[str, Any]:
        """Return what was seen: `devices`, each with its load, and `host`, with the devices whose load is not told."""
        rows = [(load.has_percent, load.row()) for _, load in sorted(self._loads.items())]
        host = self._host.row(now)
        silent = [row for has_percent, row in rows if not has_percent]
        return {
            "devices": [row for has_percent, row in rows if has_percent],
            "host": {**host, "devices": silent} if silent else host,
        }


def _reader(root: str, devices: Sequence[Device], environ: Mapping[str, str]) -> Readings:
    if not devices:
        return dict
    if devices[0].vendor == "amd":
        readers = {device.number: AmdReader(root, device) for device in devices if device.pci}
        return lambda: {number: reader.read() for number, reader in readers.items()}
    return _nvidia_reader(devices, environ)


def _nvidia_reader(devices: Sequence[Device], environ: Mapping[str, str]) -> Readings:
    from . import nvml  # ctypes takes memory, which nodes with AMD's devices do not need

    library = nvml.load()
    if library is None:
        from .nvidia_smi import NvidiaSmi

        return NvidiaSmi(devices, environ).read
    shown = {device.number: library.reader(device.pci, device.uuid) for device in devices}
    readers = {number: reader for number, reader in shown.items() if reader is not None}
    return lambda: {number: reader.read() for number, reader in readers.items()}


def _cpus(root: str, survey: Survey) -> List[int]:
    """Return the hardware threads of the run on this node."""
    allowed = parse_cpu_list(survey.cores.allowed)
    return list(allowed) or (sorted(os.sched_getaffinity(0)) if os.path.realpath(root) == "/" else [])
