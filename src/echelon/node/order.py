"""The order "save and end": a small file on the node, which ranks look for between two steps."""

import json
import os
import signal
import time
from typing import Dict, List

from . import private, processes, sweep
from .ranks import Attempt, Rank

FILE = "ECHELON_ORDER_FILE"  # in each rank: the path of the file; it does not exist until the order is given
CHAIN = "ECHELON_CHAIN"  # the run directory of a chain of jobs; without it a signal is only a signal
HANDED_OVER = 85  # the exit code of a rank that has saved and ended, as ordered
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)  # what sites send before a time limit, or to preempt
_MEMORY = "/dev/shm"  # the node's own memory: ranks may look there in each step


def path(mark: str) -> str:
    """Return the path of the order file of an agent's ranks; the mark is a number that nobody can guess."""
    return os.path.join(_MEMORY if os.access(_MEMORY, os.W_OK) else "/tmp", "echelon-order-%s" % mark)


def give(mark: str, number: int) -> None:
    """Write the order file; it appears as a whole."""
    target = path(mark)
    order = {"format": 1, "order": "save and end", "signal": number, "time": time.time()}
    private.write(target + ".part", json.dumps(order).encode() + b"\n")
    os.rename(target + ".part", target)


def withdraw(mark: str) -> None:
    """Remove the order file: it is only for the ranks that run now."""
    private.remove(path(mark))


def is_warning(environ: Dict[str, str], number: int) -> bool:
    """Say whether a signal announces the end of a job that others follow."""
    return CHAIN in environ and number in WARNINGS


def catchers(attempt: Attempt, number: int) -> List[Rank]:
    """Return the ranks whose script has a handler for a signal; the signal would end all others."""
    return [rank for rank in attempt.alive if processes.catches(rank.pid, number)]


def warn(attempt: Attempt, number: int) -> None:
    """Send a signal to the ranks that have a handler for it."""
    for rank in catchers(attempt, number):
        sweep.send(rank.pid, number)
