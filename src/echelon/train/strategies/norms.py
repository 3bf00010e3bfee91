"""The norm of the whole gradient, and clipping by it, whatever the weights are cut into.

PyTorch's clip_grad_norm_ takes gradients of one mesh; here some weights are whole, some cut once, some twice, and some
on other ranks' stages. Each rank adds the squares of its parts, divided by the number of ranks that hold the same.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ...pytorch import distributed, internals
from ..wire.gather import is_dtensor
from .axes import Axes

INFINITE = float("inf")
EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


def finish(parameters: Iterable[nn.Parameter]) -> None:
    """Complete the sums of gradients over ranks that no data axis has completed."""
    for parameter in parameters:
        gradient: Any = parameter.grad
        wanted: Any = getattr(parameter, "placements", None)
        if wanted is not None and gradient is not None and gradient.placements != wanted:
            parameter.grad = gradient.redistribute(placements=wanted)


def total(
    gradients: Sequence[Any], copies: Sequence[int], device: torch.device, *, kind: float = 2.0,
    reduce: Callable[[torch.Tensor], torch.Tensor] = lambda own: own,
) -> torch.Tensor:  # fmt: skip
    """Return the norm of all gradients of all ranks' weights, in float64 and equal on all ranks.

    `copies` has for each gradient the number of ranks that hold the same part. `reduce` adds up the powers of the norms
    over ranks, or takes their maximum if `kind` is infinite.
    """
    by_copies: dict[int, list[torch.Tensor]] = {}
    for gradient, number in zip(gradients, copies, strict=False):
        own = local(gradient.detach())
        by_copies.setdefault(number, []).append(own.coalesce().values() if own.is_sparse else own)
    power = torch.zeros((), dtype=torch.float64, device=device)
    for number, tensors in by_copies.items():
        norms = torch.stack([norm.to(device) for norm in internals.norms(tensors, kind)]).double()
        power = torch.maximum(power, norms.max()) if kind == INFINITE else power + norms.pow(kind).sum() / number
    power = reduce(power)
    return power if kind == INFINITE else power ** (1.0 / kind)


def of_axes(parameters: Iterable[nn.Parameter], axes: Axes) -> torch.Tensor:
    strategy = axes.strategy
    is_spread = strategy.is_fully_sharded or max(strategy.tensor, strategy.pipeline, strategy.context) > 1
    gradients: list[object] = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not is_spread:
        return total(gradients, [1] * len(gradients), axes.world.device)
    copies = [strategy.num_ranks // strategy.pipeline // _num_parts(gradient) for gradient in gradients]
    return total(gradients, copies, axes.world.device, reduce=axes.sum)


def multiply(parameters: Iterable[nn.Parameter], factor: torch.Tensor) -> None:
    by_device: dict[Any, list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            gradient = local(parameter.grad)
            by_device.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for (device, dtype), gradients in by_device.items():
        internals.multiply(gradients, factor.to(device, dtype))


def local(tensor: Any) -> torch.Tensor:
    part: torch.Tensor = distributed.local_part(tensor) if is_dtensor(tensor) else tensor
    return part


def _num_parts(gradient: Any) -> int:
    number = 1
    if is_dtensor(gradient):
        for axis, placement in enumerate(gradient.placements):
            number *= gradient.device_mesh.size(axis) if not placement.is_replicate() else 1
    return number
