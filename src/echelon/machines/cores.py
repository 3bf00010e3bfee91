"""Parse lists of cores such as 1-7,9-15, and notice every mistake; `topology.cpu_lists` writes them."""

from __future__ import annotations

import re

_MOST = 1 << 16


def read(text: str) -> tuple[int, ...] | None:
    """Return the numbers of a list in ascending order; None if it is invalid."""
    numbers: set[int] = set()
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if not match:
            return None
        low, high = int(match[1]), int(match[2] or match[1])
        if not low <= high < _MOST:
            return None
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))
