"""Hook functions that a script calls besides its models, and that would otherwise see a part of a model."""

import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from .. import patches
from ..function_types import Function
from ..scaling_error import ScalingError, as_of_library
from ..strategies import dropout, norms
from ..strategies.norms import EPSILON, INFINITE, local
from ..training import Training
from ..wire.gather import whole
from ..wire.world import World
from .absent_weights import WITH_THE_BATCH


class SplitModels(Protocol):
    """Models that are split: every rank holds a part of each."""

    world: World

    @property
    def is_alone(self) -> bool:
        """Whether this process goes on as one device with whole models."""

    def current_parameter(self, parameter: object) -> Any:
        """Return the current parameter for a parameter that a script kept from before the split."""

    def are_parts(self, gradients: Sequence[object]) -> list[bool]:
        """Return for each gradient whether it is cut: other ranks then hold other parts of it."""

    def has_part_of(self, module: nn.Module) -> bool:
        """Say whether some weights of a module are on other ranks."""


class Clipping:
    """PyTorch's functions that clip, by the norm of all parts of the models together."""

    def __init__(self, models: SplitModels) -> None:
        self._models = models

    def install(self) -> None:
        """Replace the functions with which a script clips in two steps."""
        for function in (self.get_total_norm, self.clip_grads_with_norm_):
            for owner in (nn.utils, nn.utils.clip_grad):
                why = "The norm of gradients is that of all parts of the model together."
                patches.replace(owner, function.__name__, function, why=why)

    def clip_grad_norm_(
        self,
        parameters: Any,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: object = None,
    ) -> torch.Tensor:
        gradients = [one.grad for one in parameters if one.grad is not None]
        total = self.get_total_norm(gradients, norm_type, error_if_nonfinite, foreach)
        self.clip_grads_with_norm_(parameters, max_norm, total, foreach)
        return total

    def get_total_norm(
        self, tensors: object, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: object = None
    ) -> torch.Tensor:
        del foreach  # it affects only the speed
        models, kind, gradients = self._models, float(norm_type), _listed(tensors)
        copies = [1 if is_part else models.world.size for is_part in models.are_parts(gradients)]

        def over_ranks(own: torch.Tensor) -> torch.Tensor:
            if not models.is_alone:
                dist.all_reduce(own, op=dist.ReduceOp.MAX if kind == INFINITE else dist.ReduceOp.SUM)
            return own

        total = norms.total(gradients, copies, models.world.device, kind=kind, reduce=over_ranks).float()
        if error_if_nonfinite and not bool(torch.isfinite(total)):
            raise as_of_library(RuntimeError(f"the total norm of order {norm_type} for gradients is non-finite"))
        return total

    def clip_grads_with_norm_(
        self, parameters: object, max_norm: float, total_norm: Any, foreach: object = None
    ) -> None:
        del foreach
        factor = torch.clamp(max_norm / (total_norm + EPSILON), max=1.0)
        for parameter in map(self._models.current_parameter, _listed(parameters)):
            if parameter.grad is not None:
                own = local(parameter.grad.detach())
                own.mul_(factor.to(own.device, own.dtype))


def _listed(tensors: Any) -> list[object]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


_READS = ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__format__", "__array__")


def install(run: Training, models: SplitModels) -> None:
    """Hook the functions that clip, scale losses, save modules, read numbers and compile."""
    dropout.install()
    warnings.filterwarnings("ignore", message="Found a non-scalar tensor with numel=1")  # it is the same on all ranks
    Clipping(models).install()
    _hook_scaler(models)
    _hook_saving(models)
    _hook_reading()
    _hook_compile(run)


def _hook_scaler(models: SplitModels) -> None:
    """Refuse a loss that is scaled for fp16: each rank would look for overflows in its own part alone."""
    original: Function = torch.amp.GradScaler.scale

    def scale(self: Any, outputs: object) -> Any:
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
    original: Function = torch.save

    def save(obj: object, *args: object, **kwargs: object) -> Any:
        inside = obj.values() if isinstance(obj, dict) else [obj]
        for value in inside:
            if isinstance(value, nn.Module) and not models.is_alone and models.has_part_of(value):
                raise ScalingError(
                    f"torch.save() got a whole {type(value).__name__}, but every rank has only a part of it",
                    "save its state, which is whole: torch.save(model.state_dict(), …)",
                )
        return original(obj, *args, **kwargs)

    patches.replace(torch, "save", save, why="A module that each rank has a part of cannot be saved as it is.")


def _hook_reading() -> None:
    """Gather a tensor before a script reads its number, such as the norm of all gradients."""

    def wrapped(original: Callable[..., object]) -> Function:
        @wraps(original)  # global tensors look functions up by their names
        def read(self: object, *args: object, **kwargs: object) -> Any:
            return original(whole(self), *args, **kwargs)

        return read

    for name in _READS:
        read = wrapped(getattr(torch.Tensor, name))
        patches.replace(torch.Tensor, name, read, why="A number that is read is that of the whole tensor.")


def _hook_compile(run: Training) -> None:
    """Leave models uncompiled: their forward pass changes while the script runs."""
    was_said: list[bool] = []

    def leave(model: object = None, *_args: object, **_kwargs: object) -> Any:
        if not was_said and run.is_main:
            run.say("note: echelon leaves torch.compile() out: it runs a split model without compilation")
        was_said.append(True)
        return model if model is not None else lambda chosen: chosen

    why = "A split model is run without compilation."
    patches.replace(torch, "compile", leave, why=why)
    patches.replace(nn.Module, "compile", lambda self, *args, **kwargs: _ignore(leave(self, *args, **kwargs)), why=why)


def _ignore(_value: object) -> None:
    pass
