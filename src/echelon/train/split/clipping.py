"""Clip by the norm of the whole gradient, of which some tensors are in parts and others the same on every rank."""

from typing import TYPE_CHECKING, Any, List, Sequence

import torch
import torch.distributed as dist
from torch import nn

from .. import patches
from ..parallel.norms import EPSILON, local

if TYPE_CHECKING:
    from .gradients import SplitGradients

INFINITE = float("inf")


def install(gradients: "SplitGradients") -> None:
    """Put ours in the place of PyTorch's functions; who has kept weights from before they were split may give those."""
    by_value = nn.utils.clip_grad_value_

    def clip_grad_norm_(
        parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: Any = None
    ) -> torch.Tensor:
        given = _listed(parameters)
        found = [one.grad for one in map(gradients.present, given) if one.grad is not None]
        total = get_total_norm(found, norm_type, error_if_nonfinite, foreach)
        clip_grads_with_norm_(given, max_norm, total, foreach)
        return total

    def get_total_norm(
        tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: Any = None
    ) -> torch.Tensor:
        del foreach  # a question of speed
        total = _total(_listed(tensors), float(norm_type), gradients)
        if error_if_nonfinite and not bool(torch.isfinite(total)):
            raise RuntimeError("the total norm of order %s for gradients is non-finite" % norm_type)
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


def _listed(given: Any) -> List[Any]:
    return [given] if isinstance(given, torch.Tensor) else list(given)


def _total(found: Sequence[Any], kind: float, gradients: "SplitGradients") -> torch.Tensor:
    """Return the norm of all gradients together, equal on all ranks."""
    device = gradients.device
    wholes: List[torch.Tensor] = []
    parts: List[torch.Tensor] = []
    for gradient, is_part in zip(found, gradients.are_parts(found)):  # noqa: B905
        own = local(gradient.detach())
        own = own.coalesce().values() if own.is_sparse else own
        (parts if is_part else wholes).append(torch.linalg.vector_norm(own, kind).double().to(device))
    of_parts, of_wholes = _together(parts, kind, device), _together(wholes, kind, device)
    if gradients.split is not None:
        dist.all_reduce(of_parts, op=dist.ReduceOp.MAX if kind == INFINITE else dist.ReduceOp.SUM)
    if kind == INFINITE:
        return torch.maximum(of_parts, of_wholes).float()
    return ((of_parts + of_wholes) ** (1.0 / kind)).float()


def _together(norms: List[torch.Tensor], kind: float, device: torch.device) -> torch.Tensor:
    """Return the largest of norms, or the sum of their powers."""
    if not norms:
        return torch.zeros((), dtype=torch.float64, device=device)
    every = torch.stack(norms)
    return every.max() if kind == INFINITE else (every**kind).sum()
