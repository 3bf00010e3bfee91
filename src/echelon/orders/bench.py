"""What `echelon bench scaling` and trials ask of ranks: the times of their steps, and an end; ranks read it as JSON.

ECHELON_BENCH='{"folder": "/scratch/bench/4-ranks-1", "steps": 100, "warm_up": 40}'
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

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


def variable(order: BenchOrder) -> str:
    """Return the value of VARIABLE.

    >>> read({VARIABLE: variable(BenchOrder("/tmp", steps=3))})
    BenchOrder(folder='/tmp', steps=3, warm_up=0, loader_workers=0)
    """
    return json.dumps(order._asdict())


def read(environ: Mapping[str, str]) -> BenchOrder | None:
    """Return the order from the variables of a rank; None where nothing is measured."""
    text = environ.get(VARIABLE, "")
    return BenchOrder(**json.loads(text)) if text else None
