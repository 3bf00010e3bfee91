"""What a notebook asks of the ranks of a cell: the values of some variables of rank 0, when the cell ends.

ECHELON_FETCH='{"names": ["loss", "model"], "path": "/tmp/…/values"}'
"""

from typing import NamedTuple

from . import codec

VARIABLE = "ECHELON_FETCH"
"""The environment variable that gives a rank the order; absent where nothing is asked for."""
FACTS = ".json"  # behind the path: the file that says how the values are written, and why some have none


class FetchOrder(NamedTuple):
    """The variables to fetch, and the file to write."""

    names: tuple[str, ...]
    path: str


read = codec.reader(VARIABLE, FetchOrder)
