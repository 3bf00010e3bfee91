"""What `echelon profile` asks of ranks: which of them record which steps; each rank reads it as JSON.

ECHELON_PROFILE='{"ranks": [[0, 0], [16, 17]], "first": 10, "last": 15}'
"""

from collections.abc import Iterable
from typing import NamedTuple

from . import codec

VARIABLE = "ECHELON_PROFILE"
"""The environment variable that gives a rank the order; absent where nothing is profiled."""
FOLDER = "profile"  # the folder of a run directory that has the profiles
LEAST_STEP = 2  # the first step that can be profiled: a profile begins with the end of the step before

Ranges = tuple[tuple[int, int], ...]


class ProfileOrder(NamedTuple):
    """The ranks and steps of a profile; a step is a step() of an optimizer, and the first one is 1."""

    ranks: Ranges
    """The first and last rank of each range."""
    first: int
    last: int


read = codec.reader(VARIABLE, ProfileOrder)


def has(ranks: Iterable[tuple[int, int]], rank: int) -> bool:
    """Say whether a rank is in one of the ranges.

    >>> has(((0, 0), (4, 7)), 5)
    True
    """
    return any(low <= rank <= high for low, high in ranks)


def file_name(rank: int) -> str:
    return f"rank-{rank}.json.gz"
