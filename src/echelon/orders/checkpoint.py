"""What the launcher asks of ranks about checkpoints: the command line chooses it, and each rank reads it as JSON."""

import os
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from . import codec

VARIABLE = "ECHELON_CHECKPOINT"
"""The environment variable that gives a rank the order; absent where nothing is saved."""

SUBFOLDER = "checkpoints"  # the folder of a run directory that has the run's checkpoints

SEED = "ECHELON_SEED_OF_RUN"  # the seed of the run that a continued run has too

MEMORY = "ECHELON_MEMORY_FOLDER"
"""The folder in the node's memory where ranks keep the newest state; empty: they keep none in memory."""

ATTEMPT = "ECHELON_ATTEMPT"
"""The number of the attempt; unlike TORCHELASTIC_RESTART_COUNT it also counts one in which a spare took over."""

_HASHES = "PYTHONHASHSEED"
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class CheckpointOrder(NamedTuple):
    """How often a training is saved, and where."""

    folder: str
    """The folder of the checkpoints: RUN/checkpoints."""
    steps: int = 0
    """The number of steps of optimizers between checkpoints; 0: by time."""
    seconds: float = 0.0
    """The seconds between checkpoints; 0: by steps."""
    keep: int = 3
    """The number of checkpoints that are kept."""
    resumes: bool = False
    """Whether the run continues from the latest checkpoint, if there is one."""


def variables(order: CheckpointOrder | None, run_directory: str) -> tuple[tuple[str, str], ...]:
    """Return the variables of ranks that save; sets of text have the same order in each start of the script."""
    if order is None:
        return ()
    folder = order.folder or os.path.join(os.path.abspath(run_directory), SUBFOLDER)
    hashes = () if os.environ.get(_HASHES) else ((_HASHES, "0"),)
    return ((VARIABLE, codec.write(order._replace(folder=folder))), *hashes)


read = codec.reader(VARIABLE, CheckpointOrder)


def seed(run_id: str, num_restarts: int) -> int:
    """Return the seed of a run that continues no other: another one for each start of its ranks.

    >>> seed("0a1b", 1)
    2588
    """
    number = int(run_id, 16) if all(letter in "0123456789abcdef" for letter in run_id) else int(run_id, 36)
    return (number + num_restarts) % (1 << 31)


def is_restarted(environ: Mapping[str, str]) -> bool:
    """Say whether an earlier attempt of this run has failed."""
    return environ.get(ATTEMPT, "0") != "0"


def interval(text: str) -> tuple[int, float] | None:
    """Return an interval as steps, or as seconds; None for a text that is none.

    >>> interval("200steps"), interval("10m"), interval("soon")
    ((200, 0.0), (0, 600.0), None)
    """
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([a-z]+)", text)
    number, unit = match.groups() if match else ("0", "")
    if unit in ("step", "steps") and "." not in number and int(number):
        return int(number), 0.0
    seconds = float(number) * _UNITS.get(unit, 0.0)
    return (0, seconds) if seconds else None


def folder(environ: Iterable[tuple[str, str]]) -> str:
    """Return the folder of checkpoints from the variables of ranks; empty where nothing is saved."""
    order = read(dict(environ))
    return order.folder if order else ""
