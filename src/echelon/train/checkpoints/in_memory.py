"""The newest state in the memory of the nodes, beside the checkpoints on the disk."""

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, Callable, List, Optional

from ...checkpoint import exchange
from ...checkpoint.in_memory import memory_saver, recall
from ...checkpoint.store import Checkpoint, has_checkpoint
from ...checkpoint_order import ATTEMPT, MEMORY, is_restarted
from .. import groups

_TIMEOUT = timedelta(seconds=memory_saver.PATIENCE_SECONDS)


def new_saver(rank: int, num_ranks: int, say: Callable[[str], None]) -> memory_saver.MemorySaver:
    """Return what keeps the states of a training; without an agent of echelon it keeps none."""
    folder = os.environ.get(MEMORY)
    return memory_saver.MemorySaver(folder, rank, num_ranks, _new_group, say, attempt=_attempt())


def newest(on_disk: Optional[Checkpoint], *, have_met: bool, num_ranks: int = 0) -> Optional[Checkpoint]:
    """Return the newest state of an earlier attempt of this run: in memory, or on the disk; all ranks call it.

    Ranks that have not met yet meet for this alone, and only if a node holds a state. With `num_ranks`, only states of
    so many ranks in memory are used.
    """
    folder = os.environ.get(MEMORY)
    if folder is None or not is_restarted(os.environ):
        return on_disk
    is_somewhere = exchange.size() > 1 or has_checkpoint(folder)
    if not have_met:
        is_somewhere = groups.any_rank("is a state in memory", is_so=is_somewhere)
    if not is_somewhere:
        return on_disk
    step = on_disk.step if on_disk is not None else -1
    meeting: AbstractContextManager[None] = nullcontext() if have_met else groups.temporary(_TIMEOUT)
    try:
        with meeting:
            return recall.newest(folder, step, _attempt(), _new_group, _say, num_ranks) or on_disk
    except RuntimeError as error:  # the same on all ranks, for each of them needs the others
        _say("the states in the memory of nodes cannot be used: %s" % str(error).partition("\n")[0])
        return on_disk


def place_in_words(*, on_disk: bool) -> str:
    """Return in words where a state was."""
    return "a checkpoint" if on_disk else "the memory of the nodes"


def _attempt() -> int:
    return int(os.environ.get(ATTEMPT, "0"))


def _new_group(ranks: Optional[List[int]] = None) -> Any:
    return groups.new(ranks, backend="gloo", timeout=_TIMEOUT)


def _say(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        sys.stderr.write("echelon: note: %s\n" % text)
