"""Read an AMD device from the files of its driver.

The firmware answers slowly, so gpu_metrics is read first, which has most values at once; other files are read only for
what it lacks. An MI250X has one sensor of power for both of its dies: the second die shows 0, no value, or the same.
`packages.Packages` counts it once.
"""

import os
from typing import List, Optional, Tuple

from ....topology import files
from ..nouns import Device
from . import gpu_metrics
from .counters import risen
from .gpu_metrics import Metrics, Residencies
from .kept_file import KeptFile
from .reading import POWER_CAP, THERMAL, Reading

_PCI = "sys/bus/pci/devices"
_DUAL_DIE = "gfx90a"
_COUNTS_ENERGY = frozenset({(1, 4), (1, 5), (1, 6), (1, 7), (1, 8)})  # version 1.3 does only for some chips
# the kernel's amdgpu_smu.h: SMU_THROTTLER_PPT0_BIT to SPPT_APU, TDC_GFX to APCC; TEMP_GPU to PROCHOT_GFX
_POWER_BITS = 0xFF | 0xFF << 16
_THERMAL_BITS = 0xFFFF << 32
_LONG_SHARE = 2  # a reason counts if it held for at least half of the time between two samples
_MICROWATTS, _MICROJOULES, _MILLIDEGREES, _HERTZ = 1e6, 1e-6, 1000, 10**6


class AmdReader:
    """The files of one device."""

    def __init__(self, root: str, device: Device) -> None:
        folder = os.path.join(root, _PCI, device.pci)
        self._is_dual_die = device.model == _DUAL_DIE
        self._metrics = KeptFile(os.path.join(folder, "gpu_metrics"), gpu_metrics.MOST_BYTES)
        self._busy = KeptFile(os.path.join(folder, "gpu_busy_percent"))
        self._used = KeptFile(os.path.join(folder, "mem_info_vram_used"))
        self._clocks = KeptFile(os.path.join(folder, "pp_dpm_sclk"))
        self._memory_bytes = files.number(files.text(os.path.join(folder, "mem_info_vram_total")))
        if self._memory_bytes <= 0:
            self._memory_bytes = device.memory_bytes
        self._clock_most_mhz = _clocks(self._clocks.read() or b"")[1]
        self._sensors = _Sensors(os.path.join(folder, "hwmon"))
        self._before: Optional[Residencies] = None

    def read(self) -> Reading:
        """Return the present state."""
        metrics = gpu_metrics.parse(self._metrics.read() or b"")
        energy, unit = self._energy(metrics)
        return Reading(
            percent=_known(metrics.percent, _percent(self._busy) if metrics.percent is None else None),
            memory_used_bytes=self._used.number(),
            memory_bytes=self._memory_bytes if self._memory_bytes > 0 else None,
            power_watts=metrics.power_watts if metrics.power_watts is not None else self._sensors.power_watts(),
            energy_count=energy,
            energy_unit_joules=unit,
            clock_mhz=metrics.clock_mhz if metrics.clock_mhz is not None else self._clock(),
            clock_most_mhz=self._clock_most_mhz,
            temperature_celsius=_known(
                metrics.temperature_celsius, self._sensors.celsius() if metrics.temperature_celsius is None else None
            ),
            throttled=self._throttled(metrics),
        )

    def _energy(self, metrics: Metrics) -> Tuple[Optional[int], float]:
        is_counted = metrics.version in _COUNTS_ENERGY or (metrics.version == (1, 3) and self._is_dual_die)
        if is_counted and metrics.energy_count is not None:
            return metrics.energy_count, gpu_metrics.ENERGY_UNIT_JOULES
        return self._sensors.energy_microjoules(), _MICROJOULES

    def _clock(self) -> Optional[int]:
        now = _clocks(self._clocks.read() or b"")[0]
        return now if now is not None else self._sensors.clock_mhz()

    def _throttled(self, metrics: Metrics) -> Optional[Tuple[str, ...]]:
        if metrics.status is not None:
            reasons = ((THERMAL, _THERMAL_BITS), (POWER_CAP, _POWER_BITS))
            return tuple(reason for reason, bits in reasons if metrics.status & bits)
        before, self._before = self._before, metrics.residencies
        return _held(before, self._before) if before is not None and self._before is not None else None


class _Sensors:
    """The files of hwmon, whose folder has a number that changes."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.join(folder, next(iter(files.names(folder)), "missing"))
        self._powers = [self._file(name) for name in ("power1_average", "power1_input")]
        self._energy = self._file("energy1_input")
        self._hertz = self._file("freq1_input")
        self._temperatures = [self._file(name) for name in self._hottest_first()]

    def _file(self, name: str) -> KeptFile:
        return KeptFile(os.path.join(self._folder, name))

    def _hottest_first(self) -> List[str]:
        labels = {number: files.text(os.path.join(self._folder, f"temp{number}_label")) for number in (1, 2, 3)}
        numbers = sorted(labels, key=lambda number: labels[number] != "junction")
        return [f"temp{number}_input" for number in numbers if labels[number] != "mem"]

    def power_watts(self) -> Optional[float]:
        """Return the power; None also for 0, which the second die of a package shows."""
        watts = next((number for file in self._powers if (number := file.number())), None)
        return watts / _MICROWATTS if watts is not None else None

    def energy_microjoules(self) -> Optional[int]:
        """Return the counter of energy that some drivers have."""
        return self._energy.number() or None

    def celsius(self) -> Optional[int]:
        """Return the temperature of the hottest place, else that of the edge."""
        degrees = next((number for file in self._temperatures if (number := file.number())), None)
        return round(degrees / _MILLIDEGREES) if degrees is not None else None

    def clock_mhz(self) -> Optional[int]:
        """Return the clock of the compute units."""
        hertz = self._hertz.number()
        return hertz // _HERTZ if hertz else None


def _known(first: Optional[int], second: Optional[int]) -> Optional[int]:
    return first if first is not None else second


def _percent(file: KeptFile) -> Optional[int]:
    percent = file.number()
    return percent if percent is not None and percent <= 100 else None


def _clocks(table: bytes) -> Tuple[Optional[int], Optional[int]]:
    """Return the present and the highest clock in MHz.

    0: 500Mhz
    1: 1700Mhz *
    """
    now, most = None, None
    for line in table.decode("ascii", "replace").splitlines():
        words = line.split()
        clock = files.number(words[1].lower().removesuffix("mhz")) if len(words) > 1 else -1
        if clock > 0:
            most = max(most or 0, clock)
            now = clock if words[-1] == "*" else now
    return now, most


def _held(before: Residencies, after: Residencies) -> Optional[Tuple[str, ...]]:
    """Return the reasons that held the clock down for at least half of the firmware's cycles in between."""
    rises = [risen(before[index], after[index], bits=32) for index in range(len(after))]
    cycles, *held = [rise or 0 for rise in rises]
    if not cycles:
        return None  # the firmware has not updated its counters since
    prochot, power, socket, regulator, memory = (rise * _LONG_SHARE >= cycles for rise in held)
    reasons = ((THERMAL, prochot or socket or regulator or memory), (POWER_CAP, power))
    return tuple(reason for reason, is_long in reasons if is_long)
