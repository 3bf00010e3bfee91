"""Whether all ranks were given the same batch: each computes its part of what it takes for that of all."""

from typing import Any

import torch
import torch.distributed as dist

from ..global_tensors.tensors import tensors_of
from ..world import World
from . import signature

NUM_COMPARED = 10
"""Batches that are compared: those that each rank draws for itself differ from the first on."""


@torch.no_grad()
def other_rank(batch: Any, world: World) -> int:
    """Return the first rank whose batch is not that of rank 0, and 0 where all have the same; all ranks must call."""
    if world.size == 1:
        return 0
    signed = signature.added(
        signature.of_tensors(tensors_of(batch)), signature.of_text(signature.text_of_shapes(batch))
    )
    own = signature.numbers(signed, world.device)
    every = [torch.empty_like(own) for _ in range(world.size)]
    dist.all_gather(every, own)
    differ = [not signature.are_equal(torch.maximum(every[0], other).tolist()) for other in every]
    return differ.index(True) if True in differ else 0
