"""All-gather among CPUs in few rounds, and small sums with it.

gloo passes parts around a ring, one in each round, from a thread that has to start first. Here a rank has twice as many
parts after each round, so 8 ranks need 3 rounds, not 7 (Bruck et al., IEEE Transactions on Parallel and Distributed
Systems 8, 1997; docs/performance.md). A part crosses the network once for each rank of another node, but only once
around a ring: gloo gathers large tensors on several nodes.
"""

import os
from typing import Any, List, Sequence

import torch
import torch.distributed as dist
from torch.distributed import irecv, isend  # the originals, before a proof hooks them
from torch.nn import Module

from .. import device as devices

_around_a_ring = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # the newer name, and the older
SMALL_BYTES = 1 << 17
"""Up to this size, rounds cost more than bytes."""
TAG = 0x4563  # a script may have sent a message of its own to the same rank


def total(value: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Return the sum over the ranks of a group (None: all ranks), in rank order; all ranks get the same bits."""
    group = group or dist.group.WORLD
    size = group.size()
    if size == 1 or devices.is_accelerator(value.device) or size * value.numel() * value.element_size() > SMALL_BYTES:
        result = value.clone()
        dist.all_reduce(result, group=group)
        return result
    parts = value.new_empty(size, value.numel())
    parts[group.rank()] = value.reshape(-1)
    gather(parts, group)
    return parts.sum(0, dtype=value.dtype).view_as(value)


def install(model: Module, device: torch.device) -> None:
    """Let fully_shard gather all weights of a model in few rounds."""
    if devices.is_accelerator(device):
        return
    gather = _FewTurns(is_one_node=os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"))
    for module in model.modules():
        spread: Any = module
        if hasattr(spread, "set_custom_all_gather"):
            spread.set_custom_all_gather(gather)


class _FewTurns:
    """The all-gather that PyTorch calls (torch.distributed.fsdp._fully_shard._fsdp_api.AllGather)."""

    def __init__(self, *, is_one_node: bool) -> None:
        self._is_one_node = is_one_node  # all ranks must decide equally, and they share only this

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> Any:
        num_bytes = output_tensor.numel() * output_tensor.element_size()
        if async_op or not num_bytes or not (self._is_one_node or num_bytes <= SMALL_BYTES):
            return _around_a_ring(output_tensor, input_tensor, group=group, async_op=async_op)
        parts = output_tensor.view(group.size(), -1)
        if parts[group.rank()].data_ptr() != input_tensor.data_ptr():
            parts[group.rank()].copy_(input_tensor.view(-1))
        gather(parts, group)
        return None


def gather(parts: torch.Tensor, group: Any) -> None:
    """Fill in the rows of all other ranks of a group of any size; each rank begins with its own row.

    Before a round a rank has `distance` rows: its own and the rows after it, modulo the size. It sends them to
    the rank at that distance before it, as far as that rank lacks them.
    """
    rank, size, distance = group.rank(), group.size(), 1
    while distance < size:
        number = min(distance, size - distance)
        after, before = (rank + distance) % size, (rank - distance) % size
        works: List[Any] = [irecv(rows, group=group, group_src=after, tag=TAG) for rows in _rows(parts, after, number)]
        works += [isend(rows, group=group, group_dst=before, tag=TAG) for rows in _rows(parts, rank, number)]
        for work in works:
            work.wait()
        distance *= 2


def _rows(parts: torch.Tensor, first: int, number: int) -> List[torch.Tensor]:
    """Return `number` rows from `first` on, in two pieces if they wrap around the end."""
    after = first + number - parts.size(0)
    return [parts[first : first + number]] if after <= 0 else [parts[first:], parts[:after]]
