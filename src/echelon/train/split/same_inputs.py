"""See that all ranks give a model the same batch: each computes its part of what it takes for that of all."""

from typing import Any, Tuple

import torch
import torch.distributed as dist

from ..refusal import Refusal
from ..view.tensors import tensors_of
from ..wholes import is_sharded
from ..world import World
from .kind import WITH_SEEDS

NUM_CALLS = 10
"""Calls that are looked at: batches that are drawn by each rank for itself differ from the first on."""
TOLERANCE = 1e-5
"""Kernels may differ in the last digits, and batches differ by far more: by one of the root of their elements."""
_AT_ONCE = 1 << 20  # elements, which take 8 bytes each while they are looked at
_LARGEST = 1e30  # what stands for infinity in a mask tells nothing, and would hide all else


class SameInputs:
    """Compares what the ranks call a model with, in the first calls."""

    def __init__(self) -> None:
        self._left = NUM_CALLS

    @torch.no_grad()
    def compare(self, inputs: Any, world: World) -> None:
        """Refuse on all ranks what is not the same on all."""
        if not self._left:
            return
        self._left -= 1
        total, size = _signature(inputs)
        ends = torch.stack([total, -total, size]).to(world.device)
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        most, least, size = ends[0], -ends[1], ends[2]
        if not bool(most - least <= TOLERANCE * size):
            raise Refusal(
                "the ranks call the model with different batches, but must compute parts of the same batch: "
                "their signatures go from %.9g to %.9g" % (least, most),
                WITH_SEEDS,
            )


def _signature(inputs: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return a number made of all elements and their places, and how large it may become."""
    total = size = torch.zeros((), dtype=torch.float64)
    for number, tensor in enumerate(tensors_of(inputs), 1):
        if is_sharded(tensor) or tensor.is_nested or tensor.layout != torch.strided or not tensor.numel():
            continue
        plain = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        turned, amount = _sums(plain.reshape(-1))
        mean = torch.log1p(amount / plain.numel())
        total = total + number * (turned / amount.clamp(min=1 / _LARGEST) + mean)
        size = size + number * (1 + mean)
    return total, size


def _sums(elements: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of elements times numbers from -1 to 1 that are as good as drawn, and that of their sizes."""
    turned = amount = torch.zeros((), dtype=torch.float64)
    for first in range(0, elements.numel(), _AT_ONCE):
        part = elements[first : first + _AT_ONCE].double()
        part = torch.where(part.abs() < _LARGEST, part, 0.0)
        places = torch.arange(first, first + part.numel(), dtype=torch.float64, device=part.device)
        turned = turned + (part * ((places * 0.6180339887498949).frac() * 2 - 1)).sum().cpu()
        amount = amount + part.abs().sum().cpu()
    return turned, amount
