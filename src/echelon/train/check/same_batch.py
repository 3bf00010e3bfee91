"""Check whether all ranks have the same batch, because each rank computes its part of the batch that it has."""

import torch
import torch.distributed as dist

from ..global_tensors.tensors import tensors_of
from ..wire.world import World
from . import signature

NUM_COMPARED = 10
"""The number of batches that are compared: batches that each rank draws for itself differ from the first on."""


@torch.no_grad()
def other_rank(batch: object, world: World) -> int:
    """Return the first rank whose batch differs from rank 0's; 0 if all batches are equal. All ranks must call this."""
    if world.size == 1:
        return 0
    signed = signature.added(
        signature.of_tensors(tensors_of(batch)), signature.of_text(signature.text_of_shapes(batch))
    )
    own = signature.numbers(signed, world.device)[::2].contiguous()  # without the negative numbers
    gathered = [torch.empty_like(own) for _ in range(world.size)]
    dist.all_gather(gathered, own)
    numbers = [torch.stack([exact, -exact, total, -total, size]) for exact, total, size in gathered]
    differ = [not signature.are_equal(torch.maximum(numbers[0], other).tolist()) for other in numbers]
    return differ.index(True) if True in differ else 0
