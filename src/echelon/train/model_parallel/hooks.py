"""Hook functions that a script calls besides its models, and that would otherwise see a part of a model."""

import warnings
from functools import wraps
from typing import TYPE_CHECKING, Any, Callable, ContextManager, List, Protocol

import torch
from torch import nn

from .. import patches
from ..gather import whole
from ..recording.record import Record
from ..scaling_error import ScalingError
from ..strategies import dropout
from . import clipping
from .ways_out import WITH_THE_BATCH

_READS = ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__format__", "__array__")

if TYPE_CHECKING:
    from ..training import Training


class SplitModels(clipping.SplitGradients, Protocol):
    """The models that are split: every rank holds a part of each."""

    def has_part_of(self, module: nn.Module) -> bool:
        """Say whether some weights of a module are on other ranks."""

    def shown(self) -> ContextManager[None]:
        """Give every rank all weights, gradients and optimizer states inside of a with block."""


def install(run: "Training", models: SplitModels) -> None:
    """Hook the functions that clip, scale losses, save modules, read numbers and compile."""
    dropout.install()
    warnings.filterwarnings("ignore", message="Found a non-scalar tensor with numel=1")  # it is the same on all ranks
    clipping.install(models)
    _hook_scaler(models)
    _hook_saving(models)
    _hook_reading()
    _hook_compile(run)
    if run.record is not None:
        _hook_record(run.record, models)


def _hook_scaler(models: SplitModels) -> None:
    """Refuse a loss that is scaled for fp16: each rank would look for overflows in its own part alone."""
    original = torch.amp.GradScaler.scale

    def scale(self: Any, outputs: Any) -> Any:
        if self.is_enabled() and not models.is_alone:
            raise ScalingError(
                "the script scales its loss for fp16 (GradScaler), but each rank would look for overflows only "
                "in its own part of the model",
                "use bfloat16, which needs no GradScaler; or " + WITH_THE_BATCH,
            )
        return original(self, outputs)

    patches.replace(
        torch.amp.GradScaler, "scale", scale, why="A split model cannot be trained with a scaled fp16 loss."
    )


def _hook_saving(models: SplitModels) -> None:
    """Refuse to save a whole module if this rank has only a part of it."""
    original = torch.save

    def save(obj: Any, *args: Any, **kwargs: Any) -> Any:
        inside = obj.values() if isinstance(obj, dict) else [obj]
        for value in inside:
            if isinstance(value, nn.Module) and not models.is_alone and models.has_part_of(value):
                raise ScalingError(
                    "torch.save() got a whole %s, but every rank has only a part of it" % type(value).__name__,
                    "save its state, which is whole: torch.save(model.state_dict(), …)",
                )
        return original(obj, *args, **kwargs)

    patches.replace(torch, "save", save, why="A module that each rank has a part of cannot be saved as it is.")


def _hook_reading() -> None:
    """Gather a tensor before a script reads its number, such as the norm of all gradients."""

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)  # global tensors look functions up by their names
        def read(self: Any, *args: Any, **kwargs: Any) -> Any:
            return original(whole(self), *args, **kwargs)

        return read

    for name in _READS:
        read = wrapped(getattr(torch.Tensor, name))
        patches.replace(torch.Tensor, name, read, why="A number that is read is that of the whole tensor.")


def _hook_record(record: Record, models: SplitModels) -> None:
    """Record the weights and states of all ranks."""
    original = record.after_step

    def after_step(optimizer: torch.optim.Optimizer) -> None:
        with models.shown():
            original(optimizer)

    record.after_step = after_step  # type: ignore[method-assign]


def _hook_compile(run: "Training") -> None:
    """Leave models uncompiled: their forward pass changes while the script runs."""
    was_said: List[bool] = []

    def leave(model: Any = None, *_args: Any, **_kwargs: Any) -> Any:
        if not was_said and run.is_main:
            run.say("note: echelon leaves torch.compile() out: it runs a split model without compilation")
        was_said.append(True)
        return model if model is not None else _same

    why = "A split model is run without compilation."
    patches.replace(torch, "compile", leave, why=why)
    patches.replace(nn.Module, "compile", lambda self, *args, **kwargs: _ignore(leave(self, *args, **kwargs)), why=why)


def _same(model: Callable[..., Any]) -> Callable[..., Any]:
    return model


def _ignore(_value: Any) -> None:
    pass
