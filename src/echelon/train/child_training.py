"""Refuse training in a process that the script starts: ranks cannot share it, and each would train on all samples.

A forked process has the hooks of its rank. A process that Python starts anew (spawn, forkserver) gets the zip on its
path again, and with it a guard. Workers of a DataLoader may compute gradients, because they make samples.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from ..pytorch import modules as torch_modules
from . import events, new_processes, patches
from .scaling_error import REFUSED_EXIT_CODE, ScalingError, tell_here

_WHY_GUARDED = "This process was started by the script, and may not train by itself."


def watch_starts(archive: str, guarded_pid: Callable[[], int]) -> None:
    """Guard the processes that multiprocessing starts anew; the guard ends the process `guarded_pid()`; 0: no guard."""

    def variables() -> dict[str, str] | None:
        pid = guarded_pid()
        return {new_processes.OF_RANK: str(pid)} if pid else None

    new_processes.give(archive, variables, why="A process that the script starts may not train by itself.")


def guard(pid: int) -> None:
    hooks = patches.Hooks()

    def refusing(original: Callable[..., object]) -> object:
        def backward(*args: object, **kwargs: object) -> Any:
            meet(pid)
            return original(*args, **kwargs)

        return backward

    hooks.replace(torch_modules.TENSOR, "Tensor.backward", refusing, why=_WHY_GUARDED)
    hooks.replace("torch.autograd", "backward", refusing, why=_WHY_GUARDED)
    hooks.apply()
    events.before_step.listen("children", lambda _: meet(pid), why=_WHY_GUARDED)


def meet(pid: int) -> None:
    """End the rank whose child begins to train; do nothing in a worker of a DataLoader."""
    from torch.utils.data import get_worker_info

    if get_worker_info() is not None:
        return
    num_ranks = os.environ.get("WORLD_SIZE", "1")
    tell_here(
        ScalingError(
            f"the script trains in a process that it starts itself; each of the {num_ranks} ranks would train on all "
            "samples",
            "call the training in the script's own process: train(…) in place of Process(target=train, "
            "args=(…)); or start one rank: echelon run -n 1 …",
        )
    )
    sys.stdout.flush()
    os.kill(pid, signal.SIGKILL)  # the rank waits for this process, or continues as if it had trained
    os._exit(REFUSED_EXIT_CODE)
