"""Lists of cores as people write them: 1-7,9-15."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MOST = 1 << 16


def read(text: str) -> tuple[int, ...] | None:
    """Return the numbers of a list in ascending order, or None where it is none."""
    numbers: set[int] = set()
    for part in text.split(",") if text else ():
        found = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if not found:
            return None
        low, high = int(found[1]), int(found[2] or found[1])
        if not low <= high < _MOST:
            return None
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def write(numbers: Iterable[int]) -> str:
    """Return the shortest list of the numbers."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
