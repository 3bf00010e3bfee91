"""Names of nodes, written as briefly as a scheduler takes them."""

from __future__ import annotations

import re
from collections.abc import Iterable


def compress(names: Iterable[str]) -> str:
    """Write nid005000, nid005001, nid005003 as nid[005000-005001,005003]."""
    alone: list[str] = []
    groups: dict[tuple[str, int], list[int]] = {}
    for name in dict.fromkeys(names):
        found = re.fullmatch(r"(.*?[^\d])(\d{1,15})", name)
        if found is None:
            alone.append(name)
        else:
            groups.setdefault((found[1], len(found[2])), []).append(int(found[2]))
    parts = []
    for (stem, width), numbers in groups.items():
        ranges = [_range(low, high, width) for low, high in _runs(sorted(numbers))]
        is_one = len(numbers) == 1
        parts.append(f"{stem}{ranges[0]}" if is_one else f"{stem}[{','.join(ranges)}]")
    return ",".join([*parts, *alone])


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def _range(low: int, high: int, width: int) -> str:
    return f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}"
