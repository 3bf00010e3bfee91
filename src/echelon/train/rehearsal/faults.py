"""Let a fault happen: this rank, its agent or its node is killed or frozen, a disk is full, a checkpoint is torn."""

import errno
import os
import signal
import time
from typing import Callable, Dict, List

from ...checkpoint import store, written
from ...checkpoint.errors import writing
from ...node import process_state
from ...rehearsal_order import (
    DROP_NODE,
    ERROR,
    FILL_DISK,
    FREEZE_RANK,
    KILL_AGENT,
    KILL_RANK,
    SIGNAL,
    TEAR_CHECKPOINT,
)
from .. import patches
from ..scaling_error import as_of_library

_AGENT = b"\0agent\0"
"""A word of the command line of every agent."""
_SAVE_SECONDS = 20.0


def strike(kind: str, checkpoints: str) -> None:
    """Let the fault happen here and now; `checkpoints` is the folder of the run's checkpoints."""
    _STRIKES[kind](checkpoints)


def concerns_all(kind: str) -> bool:
    """Say whether a fault meets all ranks: the disk is full for each of them."""
    return kind == FILL_DISK


def agent() -> int:
    """Return the process of the agent that started this rank; raise RuntimeError if there is none above it."""
    above = process_state.read(os.getppid())
    while above is not None and above.pid > 1:
        with open("/proc/%d/cmdline" % above.pid, "rb") as file:
            if _AGENT in file.read():
                return above.pid
        above = process_state.read(above.parent)
    raise RuntimeError("the process of the agent cannot be found from this rank")


def _kill_rank(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _freeze_rank(_: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _kill_agent(_: str) -> None:
    os.kill(agent(), signal.SIGKILL)


def _drop_node(_: str) -> None:
    """Freeze all processes of this node at once: a lost node says no word, and closes no connection."""
    top, here = agent(), os.getpid()
    others: List[int] = [process.pid for process in process_state.descendants([top])[top] if process.pid != here]
    for pid in (top, *others, here):
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            pass


def _fill_disk(checkpoints: str) -> None:
    original = written.File.write

    def write(file: written.File, content: object) -> None:
        if not file.path.startswith(os.path.join(os.path.abspath(checkpoints), "")):
            return original(file, content)
        with writing(file.path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patches.replace(written.File, "write", write, why="A rehearsal fills the disk of checkpoints.")


def _tear_checkpoint(checkpoints: str) -> None:
    """Cut the largest file of the newest checkpoint to its half, as a lost write does; then kill this rank."""
    deadline = time.monotonic() + _SAVE_SECONDS
    while any(".partial-" in name for name in os.listdir(checkpoints)) and time.monotonic() < deadline:
        time.sleep(0.01)  # else a newer one may be published just after
    found, _ = store.Store(checkpoints).latest()
    if found is not None:
        names = [os.path.join(found.path, name) for name in os.listdir(found.path)]
        largest = max(names, key=os.path.getsize)
        os.truncate(largest, os.path.getsize(largest) // 2)
    _kill_rank(checkpoints)


def _signal(_: str) -> None:
    os.kill(agent(), signal.SIGUSR1)


def _raise(_: str) -> None:
    raise as_of_library(RuntimeError("an error that was ordered by a rehearsal"))


_STRIKES: Dict[str, Callable[[str], None]] = {
    KILL_RANK: _kill_rank,
    FREEZE_RANK: _freeze_rank,
    KILL_AGENT: _kill_agent,
    DROP_NODE: _drop_node,
    FILL_DISK: _fill_disk,
    TEAR_CHECKPOINT: _tear_checkpoint,
    SIGNAL: _signal,
    ERROR: _raise,
}
