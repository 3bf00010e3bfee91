"""Rehearse a script that distributes itself: its steps are counted by hooks alone, and it runs to its own end."""

import atexit
import os
from typing import Any, Mapping

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ... import checkpoint_order
from .. import patches
from .course import asked


def begin(environ: Mapping[str, str]) -> None:
    """Count the steps of all optimizers, and compare the states of all optimizers when the script has ended."""
    course = asked(environ, needs_checkpoint=checkpoint_order.VARIABLE in environ)
    if course is None:
        return
    order = checkpoint_order.read(environ)
    checkpoints = order.folder if order is not None else ""
    num_steps = 0
    pid = os.getpid()

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal num_steps
        if os.getpid() == pid:  # and no fork of the script's own
            num_steps += 1
            course.stepped(optimizer, num_steps, checkpoints)

    def end() -> None:
        if os.getpid() == pid:
            course.finish_at_exit()

    patches.hook(register_optimizer_step_post_hook, after, why="A rehearsal counts steps.")
    atexit.register(end)
