"""A fault that a rehearsal orders: this rank kills or freezes itself after a step, or its disk is full.

    ECHELON_FAULT='{"kind": "kill", "rank": 1, "step": 7}'

It happens once, in the first attempt of a run.
"""

import errno
import json
import os
import signal
from typing import Mapping, NamedTuple, Optional

from ...checkpoint import written
from ...checkpoint.errors import writing
from .. import patches

VARIABLE = "ECHELON_FAULT"
KILL, FREEZE, FULL_DISK, ERROR = "kill", "freeze", "full-disk", "error"
KINDS = (KILL, FREEZE, FULL_DISK, ERROR)


class Fault(NamedTuple):
    """What happens to which rank after which number of steps, or later: once there is a checkpoint."""

    kind: str
    rank: int
    step: int

    def meet(self, rank: int, step: int, folder: str) -> bool:
        """Let the fault happen if this is its rank and its step, and say whether it did; `folder` has checkpoints."""
        if rank != self.rank or step < self.step or not _has_checkpoint(folder):
            return False
        if self.kind == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == FREEZE:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.kind == FULL_DISK:
            patches.replace(written.File, "write", _refuse, why="A rehearsal fills the disk of checkpoints.")
        else:
            raise RuntimeError("an error that was ordered by a rehearsal")
        return True


def _has_checkpoint(folder: str) -> bool:
    return os.path.isdir(folder) and any(name.startswith("step-") for name in os.listdir(folder))


def ordered(environ: Mapping[str, str]) -> Optional[Fault]:
    """Return the fault of this attempt; None where nothing is ordered.

    >>> ordered({"ECHELON_FAULT": '{"kind": "kill", "rank": 1, "step": 7}'})
    Fault(kind='kill', rank=1, step=7)
    """
    text = environ.get(VARIABLE, "")
    if not text or environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0"):
        return None
    return Fault(**json.loads(text))


def _refuse(file: written.File, _content: object) -> None:
    with writing(file.path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
