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


class SplitGradients(Protocol):
    """The gradients of models that are split over ranks."""

    world: World

    @property
    def is_alone(self) -> bool:
        """Whether this process goes on as one device with whole models."""

    def current_parameter(self, parameter: object) -> Any:
        """Return the current parameter for a parameter that a script kept from before the split."""

    def are_parts(self, gradients: Sequence[object]) -> list[bool]:
        """Return for each gradient whether it is cut: other ranks then hold other parts of it."""


def install_clipping(gradients: SplitGradients) -> None:
    """Replace PyTorch's clipping functions; they also accept parameters that a script kept from before the split."""
    by_value = nn.utils.clip_grad_value_

    def clip_grad_norm_(
        parameters: object,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: object = None,
    ) -> torch.Tensor:
        weights = _listed(parameters)
        tensors = [one.grad for one in map(gradients.current_parameter, weights) if one.grad is not None]
        total = get_total_norm(tensors, norm_type, error_if_nonfinite, foreach)
        clip_grads_with_norm_(weights, max_norm, total, foreach)
        return total

    def get_total_norm(
        tensors: object, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: object = None
    ) -> torch.Tensor:
        del foreach  # it affects only the speed
        total = _total(_listed(tensors), float(norm_type), gradients)
        if error_if_nonfinite and not bool(torch.isfinite(total)):
            raise as_of_library(RuntimeError(f"the total norm of order {norm_type} for gradients is non-finite"))
        return total

    def clip_grads_with_norm_(parameters: object, max_norm: float, total_norm: Any, foreach: object = None) -> None:
        del foreach
        factor = torch.clamp(max_norm / (total_norm + EPSILON), max=1.0)
        for parameter in map(gradients.current_parameter, _listed(parameters)):
            if parameter.grad is not None:
                own = local(parameter.grad.detach())
                own.mul_(factor.to(own.device, own.dtype))

    def clip_grad_value_(parameters: Sequence[torch.Tensor], clip_value: float, foreach: Any = None) -> None:
        by_value([gradients.current_parameter(one) for one in _listed(parameters)], clip_value, foreach)

    for function in (clip_grad_norm_, get_total_norm, clip_grads_with_norm_, clip_grad_value_):
        for owner in (nn.utils, nn.utils.clip_grad):
            why = "The norm of gradients is that of all parts of the model together."
            patches.replace(owner, function.__name__, function, why=why)


def _listed(tensors: Any) -> list[object]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _total(gradients: Sequence[object], kind: float, models: SplitGradients) -> torch.Tensor:
    world = models.world
    copies = [1 if is_part else world.size for is_part in models.are_parts(gradients)]

    def over_ranks(own: torch.Tensor) -> torch.Tensor:
        if not models.is_alone:
            dist.all_reduce(own, op=dist.ReduceOp.MAX if kind == INFINITE else dist.ReduceOp.SUM)
        return own

    return norms.total(gradients, copies, world.device, kind=kind, reduce=over_ranks).float()


_READS = ("item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__format__", "__array__")


class SplitModels(SplitGradients, Protocol):
    """The models that are split: every rank holds a part of each."""

    def has_part_of(self, module: nn.Module) -> bool:
        """Say whether some weights of a module are on other ranks."""


def install(run: Training, models: SplitModels) -> None:
    """Hook the functions that clip, scale losses, save modules, read numbers and compile."""
    dropout.install()
    warnings.filterwarnings("ignore", message="Found a non-scalar tensor with numel=1")  # it is the same on all ranks
    install_clipping(models)
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
