"""What `echelon bench scaling` and trials ask of ranks: the times of their steps, and an end; ranks read it as JSON.

ECHELON_BENCH='{"folder": "/scratch/bench/4-ranks-1", "steps": 100, "warm_up": 40}'
"""

from typing import NamedTuple

from . import codec

VARIABLE = "ECHELON_BENCH"
"""The environment variable that gives a rank the order; absent where nothing is measured."""
SECONDS_FILE = "seconds.txt"
"""Rank 0 writes it: a line for each step after the first, with the seconds since the step before."""
ALONE_FILE = "alone"
"""Rank 0 writes it at its second step if the ranks of the run have not met: each of them trains alone."""


class BenchOrder(NamedTuple):
    """The order of one run."""

    folder: str
    """The folder of the record; it exists."""
    steps: int = 0
    """The number of optimizer steps after which all ranks end; 0: when the script ends."""
    warm_up: int = 0
    """The step after which the devices are waited for once, so that the steps behind it are measured alone."""
    loader_workers: int = 0
    """The least number of workers of each DataLoader; 0: the script's own."""


read = codec.reader(VARIABLE, BenchOrder)
