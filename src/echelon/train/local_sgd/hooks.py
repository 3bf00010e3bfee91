"""Hooks that let ranks that train alone meet before the script reads weights, so that it reads their average."""

import atexit
import os
import threading
from functools import wraps
from typing import TYPE_CHECKING, Any, Callable, ContextManager

import torch
from torch import nn

from ...pytorch import internals
from .. import patches
from . import losses
from .meetings import Meetings

if TYPE_CHECKING:
    from ..training import Training


def install(run: "Training", meetings: Meetings, one_step: Callable[[Any], ContextManager[None]]) -> None:
    """Hook saving, evaluation, and the scaler, which may skip a step on one rank alone; `one_step` counts the step."""
    losses.install()
    _hook_saving(run, meetings)
    _hook_calls(run, meetings)
    _hook_scaler(one_step)
    if run.is_main:
        pid = os.getpid()
        atexit.register(lambda: _tell(run, meetings) if os.getpid() == pid else None)


def is_layer(module: nn.Module) -> bool:
    """Say whether a module is a single layer that scripts put into eval() while they train, which is no evaluation."""
    return isinstance(module, internals.NormLayer)


def _hook_saving(run: "Training", meetings: Meetings) -> None:
    """Meet before weights are saved, or others are loaded."""

    def meets(original: Callable[..., Any], *, of_module: bool) -> Callable[..., Any]:
        @wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            if _may_meet(run):
                run.parallelism.settle(args[0] if of_module else None)
            return original(*args, **kwargs)

        return save

    load = nn.Module.load_state_dict

    @wraps(load)
    def load_state_dict(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        run.parallelism.settle(self)
        result = load(self, *args, **kwargs)
        meetings.forget(self.parameters())  # loaded weights are no progress of a rank
        return result

    why = "Weights that are saved are the average of all ranks."
    patches.replace(
        nn.Module, "load_state_dict", load_state_dict, why="Weights that are loaded are no progress of a rank."
    )
    patches.replace(nn.Module, "state_dict", meets(nn.Module.state_dict, of_module=True), why=why)
    patches.replace(torch, "save", meets(torch.save, of_module=False), why=why)


def _hook_calls(run: "Training", meetings: Meetings) -> None:
    """Meet before a model computes without gradients outside of any loop over a loader, as an evaluation does."""
    original = run.calls.call

    def call(as_ever: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        if meetings.are_apart and not torch.is_grad_enabled() and run.loop is None and _may_meet(run):
            run.parallelism.settle(module)
        return original(as_ever, module, args, kwargs)

    run.calls.call = call  # type: ignore[method-assign, assignment]


def _hook_scaler(one_step: Callable[[Any], ContextManager[None]]) -> None:
    """Count a step that one rank's scaler skips because that rank's gradients were too large for 16 bits."""
    original = torch.amp.GradScaler.step

    def step(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        with one_step(optimizer):
            return original(self, optimizer, *args, **kwargs)

    why = "A step that the scaler of one rank leaves out counts as a step."
    patches.replace(torch.amp.GradScaler, "step", step, why=why)


def _may_meet(run: "Training") -> bool:
    """Say whether all ranks come to this place: not in a worker or a thread, nor where rank 0 writes for all."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    return is_main_thread and run.is_at_home and not run.files.is_acting


def _tell(run: "Training", meetings: Meetings) -> None:
    if meetings.num_steps:
        early = ", and %d more to evaluate or save weights" % meetings.num_early if meetings.num_early else ""
        run.say("ranks met %d times in %d steps%s" % (meetings.num_regular, meetings.num_steps, early))
