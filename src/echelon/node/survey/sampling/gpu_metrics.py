"""Parse gpu_metrics, the binary table that amdgpu's firmware fills for each device.

The layouts are the structs gpu_metrics_v1_0 to gpu_metrics_v1_8 of the kernel's kgd_pp_interface.h, in C's natural
alignment. Tables of version 2 and 3 belong to notebooks' processors; version 1.9 has no fixed layout.
"""

import struct
from typing import Dict, NamedTuple, Optional, Tuple

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


LAYOUTS: Dict[Tuple[int, int], Layout] = {
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

    version: Tuple[int, int] = (0, 0)
    percent: Optional[int] = None
    power_watts: Optional[int] = None
    energy_count: Optional[int] = None
    clock_mhz: Optional[int] = None
    temperature_celsius: Optional[int] = None
    status: Optional[int] = None
    residencies: Optional[Residencies] = None


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
    return Metrics(
        version=version,
        percent=_percent(table, layout.percent),
        power_watts=_positive(table, layout.power),
        energy_count=_long(table, layout.energy) or None,  # 0: the second die of a package
        clock_mhz=_clock(table, layout),
        temperature_celsius=_positive(table, layout.hotspot),
        status=_long(table, layout.status),
        residencies=_residencies(table, layout.residencies),
    )


def _percent(table: bytes, offset: int) -> Optional[int]:
    (value,) = _WORD.unpack_from(table, offset)
    return value if value <= 100 else None


def _positive(table: bytes, offset: int) -> Optional[int]:
    (value,) = _WORD.unpack_from(table, offset)
    return value if 0 < value < _NO_WORD else None


def _long(table: bytes, offset: int) -> Optional[int]:
    if offset < 0:
        return None
    (value,) = _LONG.unpack_from(table, offset)
    return value if value != _NO_LONG else None


def _clock(table: bytes, layout: Layout) -> Optional[int]:
    """Return the mean clock of the parts that run."""
    clocks = struct.unpack_from("<%dH" % layout.num_clocks, table, layout.clocks)
    running = [clock for clock in clocks if 0 < clock < _NO_WORD]
    return round(sum(running) / len(running)) if running else None


def _residencies(table: bytes, offset: int) -> Optional[Residencies]:
    if offset < 0:
        return None
    counters = Residencies(*_RESIDENCIES.unpack_from(table, offset))
    return counters if _NO_INT not in counters else None
