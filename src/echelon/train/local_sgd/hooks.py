"""Hooks that let ranks that train alone meet before the script reads weights, so that it reads their average."""

import atexit
import inspect
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, wraps
from typing import Any

import torch
from torch import nn

from ...pytorch import internals
from .. import patches
from ..function_types import Args, Function, Kwargs
from ..global_tensors import losses
from ..global_tensors.tensors import GlobalTensor, Partial, Sharded
from ..training import Training
from .meetings import Meetings


def install(run: Training, meetings: Meetings, one_step: Callable[[Any], AbstractContextManager[None]]) -> None:
    """Hook saving, evaluation, and the scaler, which may skip a step on one rank alone; `one_step` counts the step."""
    install_losses()
    _hook_saving(run, meetings)
    _hook_calls(run, meetings)
    _hook_scaler(one_step)
    if run.is_main:
        pid = os.getpid()
        atexit.register(lambda: _tell(run, meetings) if os.getpid() == pid else None)


def is_layer(module: nn.Module) -> bool:
    return isinstance(module, internals.NormLayer)


def _hook_saving(run: Training, meetings: Meetings) -> None:
    def meets(original: Callable[..., object], *, of_module: bool) -> Callable[..., object]:
        @wraps(original)
        def save(*args: Any, **kwargs: object) -> Any:
            if _may_meet(run):
                run.parallelism.sync_weights(args[0] if of_module else None)
            return original(*args, **kwargs)

        return save

    load: Function = nn.Module.load_state_dict

    @wraps(load)
    def load_state_dict(self: nn.Module, *args: Any, **kwargs: object) -> Any:
        run.parallelism.sync_weights(self)
        result = load(self, *args, **kwargs)
        meetings.forget(self.parameters())  # loaded weights are no progress of a rank
        return result

    why = "Weights that are saved are the average of all ranks."
    patches.replace(
        nn.Module, "load_state_dict", load_state_dict, why="Weights that are loaded are no progress of a rank."
    )
    patches.replace(nn.Module, "state_dict", meets(nn.Module.state_dict, of_module=True), why=why)
    patches.replace(torch, "save", meets(torch.save, of_module=False), why=why)


def _hook_calls(run: Training, meetings: Meetings) -> None:
    """Meet before a model computes without gradients outside of any loop over a loader, as an evaluation does."""
    original = run.calls.call

    def call(as_ever: Function, module: nn.Module, args: Args, kwargs: Kwargs) -> Any:
        if meetings.are_apart and not torch.is_grad_enabled() and run.loop is None and _may_meet(run):
            run.parallelism.sync_weights(module)
        return original(as_ever, module, args, kwargs)

    run.calls.call = call  # type: ignore[method-assign, assignment]


def _hook_scaler(one_step: Callable[[Any], AbstractContextManager[None]]) -> None:
    """Count a step that one rank's scaler skips because that rank's gradients were too large for 16 bits."""
    original: Function = torch.amp.GradScaler.step

    def step(self: object, optimizer: torch.optim.Optimizer, *args: object, **kwargs: object) -> Any:
        with one_step(optimizer):
            return original(self, optimizer, *args, **kwargs)

    why = "A step that the scaler of one rank leaves out counts as a step."
    patches.replace(torch.amp.GradScaler, "step", step, why=why)


def _may_meet(run: Training) -> bool:
    """Say whether all ranks come to this place: not in a worker or a thread, nor where rank 0 writes for all."""
    is_main_thread = threading.current_thread() is threading.main_thread()
    return is_main_thread and run.is_at_home and not run.files.is_acting


def _tell(run: Training, meetings: Meetings) -> None:
    if meetings.num_steps:
        early = f", and {meetings.num_early} more to evaluate or save weights" if meetings.num_early else ""
        run.say(f"ranks met {meetings.num_regular} times in {meetings.num_steps} steps{early}")


_NAMES = ("cross_entropy", "nll_loss")
_LEAST = 1e-6  # the divisor of a sum over no targets, which is 0


def install_losses() -> None:
    """Put this module's rule before the other rules of global tensors."""
    usual = GlobalTensor.rule

    def rule(func: Function, args: Args, kwargs: Kwargs) -> Any:
        own = _own_mean(func, args, kwargs) if getattr(func, "__name__", "") in _NAMES else None
        return usual(func, args, kwargs) if own is None else own

    patches.replace(
        GlobalTensor, "rule", staticmethod(rule), why="A mean over classes is that of the samples of this rank."
    )


@cache
def _signature(func: Callable[..., object]) -> inspect.Signature:
    return inspect.signature(func)


def _own_mean(func: Function, args: Args, kwargs: Kwargs) -> Partial | None:
    """Return the mean over the targets of this rank, weighted by its share of the batch; None for any other loss."""
    values = _signature(func).bind(*args, **kwargs)
    values.apply_defaults()
    arguments = values.arguments
    rows = _rows_in_common(arguments["input"], arguments["target"])
    is_mean = arguments["reduction"] == "mean" and arguments["size_average"] is None and arguments["reduce"] is None
    if rows is None or not is_mean or isinstance(arguments["weight"], GlobalTensor):
        return None
    own = rows.rows[rows.world.rank]
    count = losses.count_of_targets(
        arguments["target"].local[:own], arguments["weight"], arguments["ignore_index"], arguments["input"].local
    )
    arguments.update(input=arguments["input"].local, target=arguments["target"].local, reduction="sum")
    fraction = own / sum(rows.rows)
    loss = func(**arguments) * fraction
    return Partial(loss / count.clamp(min=_LEAST).to(loss.dtype), rows.world, fraction)


def _rows_in_common(scores: object, target: object) -> Sharded | None:
    if not isinstance(scores, Sharded) or not isinstance(target, Sharded) or target.is_floating_point():
        return None
    is_lined_up = scores.rows == target.rows and not scores.dim_of_rows and not target.dim_of_rows
    return scores if is_lined_up and scores.size(0) > 1 else None
