"""See that all ranks give a model the same batch: each computes its part of what it takes for that of all."""

from typing import Any, Tuple

import torch
import torch.distributed as dist

from ..refusal import Refusal
from ..shards import is_sharded
from ..view.tensors import tensors_of
from ..world import World

NUM_CALLS = 10
"""Calls that are looked at: batches that are drawn by each rank for itself differ from the first on."""
TOLERANCE = 1e-5
"""Of sums that are weighted by places: kernels may differ in the last digits, and batches differ by far more."""
SEEDS = (
    "let all that is random come from torch, numpy.random or random, or have a seed (numpy.random.default_rng(0)); or "
)


class SameInputs:
    """Compares what the ranks call a model with, in the first calls."""

    def __init__(self, way_out: str) -> None:
        self._way_out = way_out
        self._left = NUM_CALLS

    @torch.no_grad()
    def compare(self, inputs: Any, world: World) -> None:
        """Refuse on all ranks what is not the same on all."""
        if not self._left:
            return
        self._left -= 1
        total, size = _sums(inputs)
        ends = torch.stack([total, -total, size]).to(world.device)
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        most, least = float(ends[0]), -float(ends[1])
        if most - least > TOLERANCE * float(ends[2]):
            raise Refusal(
                "the ranks call the model with different batches, and each computes its part of what has to be one: "
                "weighted by places their elements add up to %.9g and to %.9g" % (least, most),
                SEEDS + self._way_out,
            )


def _sums(inputs: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of all elements, in which each place counts otherwise, and that of their absolute values."""
    total = size = torch.zeros((), dtype=torch.float64)
    for number, tensor in enumerate(tensors_of(inputs)):
        if is_sharded(tensor) or tensor.layout != torch.strided or not tensor.numel():
            continue
        plain = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        rows = torch.nan_to_num(plain.reshape(plain.size(0) if plain.dim() else 1, -1).float())
        across, down = _weights(rows.size(1), rows), _weights(rows.size(0), rows).double()
        total = total + (number + 1) * (down @ (rows @ across).double()).cpu()
        size = size + (number + 1) * (down @ (rows.abs() @ across).double()).cpu()
    return total, size


def _weights(length: int, like: torch.Tensor) -> torch.Tensor:
    """Return numbers from 1 to 2 that are as good as drawn, the same on all ranks."""
    places = torch.arange(length, dtype=torch.float64, device=like.device)
    return (places * 0.6180339887498949).frac().add(1).to(like.dtype)
