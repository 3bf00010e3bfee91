"""Read an AMD device from the files of its driver.

The firmware answers slowly, so gpu_metrics is read first, which has most values at once; other files are read only for
what it lacks. An MI250X has one sensor of power for both of its dies: the second die shows 0, no value, or the same.
`packages.Packages` counts it once.

Parse gpu_metrics, the binary table that amdgpu's firmware fills for each device.

The layouts are the structs gpu_metrics_v1_0 to gpu_metrics_v1_8 of the kernel's kgd_pp_interface.h, in C's natural
alignment. Tables of version 2 and 3 belong to notebooks' processors; version 1.9 has no fixed layout.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

from .. import files
from ..answers import Sampled
from ..reading import POWER_CAP, THERMAL, KeptFile, Reading, risen

MOST_BYTES = 4096
ENERGY_UNIT_JOULES = 2.0**-16  # "Energy (15.259uJ (2^-16) units)"
_HEADER = struct.Struct("<HBB")  # size of the table, format and content revision
_WORD = struct.Struct("<H")
_LONG = struct.Struct("<Q")
_RESIDENCIES = struct.Struct("<6I")
_NO_WORD, _NO_LONG, _NO_INT = 0xFFFF, 0xFFFFFFFFFFFFFFFF, 0xFFFFFFFF  # the driver fills what it does not know with ones


class Layout(NamedTuple):
    """Where a version of the table has its fields, in bytes; -1: it has no such field."""

    size: int
    hotspot: int  # in degrees
    percent: int  # average_gfx_activity
    power: int  # in watts, of the whole package
    clocks: int  # current_gfxclk in MHz
    num_clocks: int = 1
    energy: int = -1
    status: int = -1  # indep_throttle_status: bits that do not depend on the chip
    residencies: int = -1  # accumulation_counter, and how much of it each reason held the clock down


LAYOUTS: dict[tuple[int, int], Layout] = {
    # energy of 1.0 to 1.2: the unit depends on the chip
    (1, 0): Layout(80, hotspot=18, percent=28, power=34, clocks=54),
    (1, 1): Layout(96, hotspot=6, percent=16, power=22, clocks=54),
    (1, 2): Layout(104, hotspot=6, percent=16, power=22, clocks=54),
    (1, 3): Layout(120, hotspot=6, percent=16, power=22, clocks=54, energy=24, status=112),
    (1, 4): Layout(288, hotspot=4, percent=12, power=10, clocks=240, num_clocks=8, energy=24),
    (1, 5): Layout(360, hotspot=4, percent=12, power=10, clocks=312, num_clocks=8, energy=88),
    (1, 6): Layout(1664, hotspot=4, percent=12, power=10, clocks=264, num_clocks=8, energy=16, residencies=32),
    (1, 7): Layout(2208, hotspot=4, percent=12, power=10, clocks=296, num_clocks=8, energy=24, residencies=40),
    (1, 8): Layout(3360, hotspot=4, percent=12, power=10, clocks=296, num_clocks=8, energy=24, residencies=40),
}


class Residencies(NamedTuple):
    """Counters: the cycles of the firmware, and the cycles in which each reason held the clock down."""

    cycles: int
    prochot: int
    power: int
    socket: int
    regulator: int
    memory: int


class Metrics(NamedTuple):
    """The fields of a table; None: the driver does not tell."""

    version: tuple[int, int] = (0, 0)
    percent: int | None = None
    power_watts: int | None = None
    energy_count: int | None = None
    clock_mhz: int | None = None
    temperature_celsius: int | None = None
    status: int | None = None
    residencies: Residencies | None = None


EMPTY = Metrics()


def parse(table: bytes) -> Metrics:
    """Return the fields of a table; EMPTY if it is cut off or of a version without a known layout."""
    if len(table) < _HEADER.size:
        return EMPTY
    size, *revisions = _HEADER.unpack_from(table)
    version = (revisions[0], revisions[1])
    layout = LAYOUTS.get(version)
    if layout is None or size != layout.size or len(table) < size:
        return EMPTY
    (value,) = _WORD.unpack_from(table, layout.percent)
    return Metrics(
        version=version,
        percent=value if value <= 100 else None,
        power_watts=_positive(table, layout.power),
        energy_count=_long(table, layout.energy) or None,  # 0: the second die of a package
        clock_mhz=_clock(table, layout),
        temperature_celsius=_positive(table, layout.hotspot),
        status=_long(table, layout.status),
        residencies=_residencies(table, layout.residencies),
    )


def _positive(table: bytes, offset: int) -> int | None:
    (value,) = _WORD.unpack_from(table, offset)
    return value if 0 < value < _NO_WORD else None


def _long(table: bytes, offset: int) -> int | None:
    if offset < 0:
        return None
    (value,) = _LONG.unpack_from(table, offset)
    return value if value != _NO_LONG else None


def _clock(table: bytes, layout: Layout) -> int | None:
    """Return the mean clock of the parts that run."""
    clocks = struct.unpack_from("<%dH" % layout.num_clocks, table, layout.clocks)
    running = [clock for clock in clocks if 0 < clock < _NO_WORD]
    return round(sum(running) / len(running)) if running else None


def _residencies(table: bytes, offset: int) -> Residencies | None:
    if offset < 0:
        return None
    counters = Residencies(*_RESIDENCIES.unpack_from(table, offset))
    return counters if _NO_INT not in counters else None


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

    def __init__(self, root: str, device: Sampled) -> None:
        folder = os.path.join(root, _PCI, device.pci)
        self._is_dual_die = device.model == _DUAL_DIE
        self._metrics = KeptFile(os.path.join(folder, "gpu_metrics"), MOST_BYTES)
        self._busy = KeptFile(os.path.join(folder, "gpu_busy_percent"))
        self._used = KeptFile(os.path.join(folder, "mem_info_vram_used"))
        self._clocks = KeptFile(os.path.join(folder, "pp_dpm_sclk"))
        self._memory_bytes = files.number(files.text(os.path.join(folder, "mem_info_vram_total")))
        if self._memory_bytes <= 0:
            self._memory_bytes = device.memory_bytes
        self._clock_most_mhz = _clocks(self._clocks.read() or b"")[1]
        self._sensors = _Sensors(os.path.join(folder, "hwmon"))
        self._before: Residencies | None = None

    def read(self) -> Reading:
        metrics = parse(self._metrics.read() or b"")
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

    def _energy(self, metrics: Metrics) -> tuple[int | None, float]:
        is_counted = metrics.version in _COUNTS_ENERGY or (metrics.version == (1, 3) and self._is_dual_die)
        if is_counted and metrics.energy_count is not None:
            return metrics.energy_count, ENERGY_UNIT_JOULES
        return self._sensors.energy_microjoules(), _MICROJOULES

    def _clock(self) -> int | None:
        now = _clocks(self._clocks.read() or b"")[0]
        return now if now is not None else self._sensors.clock_mhz()

    def _throttled(self, metrics: Metrics) -> tuple[str, ...] | None:
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

    def _hottest_first(self) -> list[str]:
        labels = {number: files.text(os.path.join(self._folder, f"temp{number}_label")) for number in (1, 2, 3)}
        numbers = sorted(labels, key=lambda number: labels[number] != "junction")
        return [f"temp{number}_input" for number in numbers if labels[number] != "mem"]

    def power_watts(self) -> float | None:
        """Return the power; None also for 0, which the second die of a package shows."""
        watts = next((number for file in self._powers if (number := file.number())), None)
        return watts / _MICROWATTS if watts is not None else None

    def energy_microjoules(self) -> int | None:
        """Return the counter of energy that some drivers have."""
        return self._energy.number() or None

    def celsius(self) -> int | None:
        """Return the temperature of the hottest place, else that of the edge."""
        degrees = next((number for file in self._temperatures if (number := file.number())), None)
        return round(degrees / _MILLIDEGREES) if degrees is not None else None

    def clock_mhz(self) -> int | None:
        hertz = self._hertz.number()
        return hertz // _HERTZ if hertz else None


def _known(first: int | None, second: int | None) -> int | None:
    return first if first is not None else second


def _percent(file: KeptFile) -> int | None:
    percent = file.number()
    return percent if percent is not None and percent <= 100 else None


def _clocks(table: bytes) -> tuple[int | None, int | None]:
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


def _held(before: Residencies, after: Residencies) -> tuple[str, ...] | None:
    """Return the reasons that held the clock down for at least half of the firmware's cycles in between."""
    rises = [risen(before[index], after[index], bits=32) for index in range(len(after))]
    cycles, *held = [rise or 0 for rise in rises]
    if not cycles:
        return None  # the firmware has not updated its counters since
    prochot, power, socket, regulator, memory = (rise * _LONG_SHARE >= cycles for rise in held)
    reasons = ((THERMAL, prochot or socket or regulator or memory), (POWER_CAP, power))
    return tuple(reason for reason, is_long in reasons if is_long)
