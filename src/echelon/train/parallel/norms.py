"""The norm of the whole gradient, and clipping by it, whatever the weights are cut into.

PyTorch's clip_grad_norm_ takes what lies on one mesh; here some weights are whole, some cut once, some twice, and some
on other ranks' stages. Each rank adds the squares of what it holds, divided by the number of ranks that hold the same.
"""

from typing import Any, Dict, Iterable, List

import torch
from torch import nn

from ..wholes import is_dtensor
from .axes import Axes

EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


def finish(parameters: Iterable[nn.Parameter]) -> None:
    """Sum what is still one rank's part of a gradient, where no data axis has done so."""
    for parameter in parameters:
        gradient: Any = parameter.grad
        wanted: Any = getattr(parameter, "placements", None)
        if wanted is not None and gradient is not None and gradient.placements != wanted:
            parameter.grad = gradient.redistribute(placements=wanted)


def total(parameters: Iterable[nn.Parameter], axes: Axes) -> torch.Tensor:
    """Return the 2-norm of all gradients of all ranks' weights, equal on all ranks."""
    one = axes.strategy
    is_spread = one.is_fully_sharded or max(one.tensor, one.pipeline, one.context) > 1
    by_copies: Dict[int, List[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            copies = one.num_ranks // one.pipeline // _num_parts(parameter.grad) if is_spread else 1
            by_copies.setdefault(copies, []).append(local(parameter.grad))
    square = torch.zeros((), dtype=torch.float64, device=axes.world.device)
    for copies, gradients in by_copies.items():
        norms = torch.stack([norm.to(square.device) for norm in torch._foreach_norm(gradients)])
        square += norms.double().square().sum() / copies
    if is_spread:
        square = axes.sum(square)
    return square.sqrt()


def multiply(parameters: Iterable[nn.Parameter], factor: torch.Tensor) -> None:
    """Multiply all gradients."""
    by_device: Dict[Any, List[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            gradient = local(parameter.grad)
            by_device.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for (device, dtype), gradients in by_device.items():
        torch._foreach_mul_(gradients, factor.to(device, dtype))


def local(tensor: Any) -> torch.Tensor:
    """Return what this rank holds of a tensor."""
    found: torch.Tensor = tensor._local_tensor if is_dtensor(tensor) else tensor
    return found


def _num_parts(gradient: Any) -> int:
    """Return into how many parts a tensor is cut."""
    number = 1
    if is_dtensor(gradient):
        for axis, placement in enumerate(gradient.placements):
            number *= gradient.device_mesh.size(axis) if not placement.is_replicate() else 1
    return number
