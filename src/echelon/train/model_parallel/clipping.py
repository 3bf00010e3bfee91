"""Clip by the norm of the whole gradient: some gradients are in parts, others are equal on every rank."""

from typing import Any, List, Protocol, Sequence

import torch
import torch.distributed as dist
from torch import nn

from .. import patches
from ..scaling_error import as_of_library
from ..strategies import norms
from ..strategies.norms import EPSILON, INFINITE, local
from ..world import World


class SplitGradients(Protocol):
    """The gradients of models that are split over ranks."""

    world: World

    @property
    def is_alone(self) -> bool:
        """Whether this process goes on as one device with whole models."""

    def present(self, parameter: Any) -> Any:
        """Return the current parameter for a parameter that a script kept from before the split."""

    def are_parts(self, gradients: Sequence[Any]) -> List[bool]:
        """Return for each gradient whether it is cut: other ranks then hold other parts of it."""


def install(gradients: SplitGradients) -> None:
    """Replace PyTorch's clipping functions; they also accept parameters that a script kept from before the split."""
    by_value = nn.utils.clip_grad_value_

    def clip_grad_norm_(
        parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: Any = None
    ) -> torch.Tensor:
        weights = _listed(parameters)
        tensors = [one.grad for one in map(gradients.present, weights) if one.grad is not None]
        total = get_total_norm(tensors, norm_type, error_if_nonfinite, foreach)
        clip_grads_with_norm_(weights, max_norm, total, foreach)
        return total

    def get_total_norm(
        tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: Any = None
    ) -> torch.Tensor:
        del foreach  # it affects only the speed
        total = _total(_listed(tensors), float(norm_type), gradients)
        if error_if_nonfinite and not bool(torch.isfinite(total)):
            raise as_of_library(RuntimeError("the total norm of order %s for gradients is non-finite" % norm_type))
        return total

    def clip_grads_with_norm_(parameters: Any, max_norm: float, total_norm: Any, foreach: Any = None) -> None:
        del foreach
        factor = torch.clamp(max_norm / (total_norm + EPSILON), max=1.0)
        for parameter in map(gradients.present, _listed(parameters)):
            if parameter.grad is not None:
                own = local(parameter.grad.detach())
                own.mul_(factor.to(own.device, own.dtype))

    def clip_grad_value_(parameters: Any, clip_value: float, foreach: Any = None) -> None:
        by_value([gradients.present(one) for one in _listed(parameters)], clip_value, foreach)

    for function in (clip_grad_norm_, get_total_norm, clip_grads_with_norm_, clip_grad_value_):
        for owner in (nn.utils, nn.utils.clip_grad):
            why = "The norm of gradients is that of all parts of the model together."
            patches.replace(owner, function.__name__, function, why=why)


def _listed(tensors: Any) -> List[Any]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _total(gradients: Sequence[Any], kind: float, models: SplitGradients) -> torch.Tensor:
    """Return the norm of all gradients together, equal on all ranks."""
    world = models.world
    copies = [1 if is_part else world.size for is_part in models.are_parts(gradients)]

    def over_ranks(own: torch.Tensor) -> torch.Tensor:
        if not models.is_alone:
            dist.all_reduce(own, op=dist.ReduceOp.MAX if kind == INFINITE else dist.ReduceOp.SUM)
        return own

    return norms.total(gradients, copies, world.device, kind=kind, reduce=over_ranks).float()
