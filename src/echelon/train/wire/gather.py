"""Gather sharded tensors, many by one message, because a message for each costs a round of all ranks.

All-gather among CPUs in few rounds, and small sums with it.

gloo passes parts around a ring, one in each round, from a thread that has to start first. Here a rank has twice as many
parts after each round, so 8 ranks need 3 rounds, not 7 (Bruck et al., IEEE Transactions on Parallel and Distributed
Systems 8, 1997; docs/performance.md). A part crosses the network once for each rank of another node, but only once
around a ring: gloo gathers large tensors on several nodes.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import all_gather, irecv, isend  # the originals, before a proof hooks them
from torch.nn import Module

from ...pytorch import distributed
from . import device as devices

MOST_BYTES = 32 << 20  # of whole tensors in a message, which bounds its memory


class Axis(NamedTuple):
    """The mesh, axis, dtype and device that all tensors of one message share."""

    mesh: Any
    dim: int
    dtype: torch.dtype
    device: torch.device


def is_sharded(tensor: object) -> bool:
    """Say whether other ranks hold parts of a tensor: a DTensor, or a weight in another rank's stage."""
    return hasattr(tensor, "full_tensor")


def is_dtensor(tensor: object) -> bool:
    """Say whether a tensor is a DTensor, without the slow import of DTensor."""
    return hasattr(tensor, "placements")


def whole(tensor: Any) -> Any:
    """Return a whole tensor; every rank must call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def each_whole(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield whole tensors without gradients, in the same order.

    All ranks of a mesh must give its tensors in the same order, with those of other meshes at the same places between.
    """
    batch: list[torch.Tensor] = []
    mesh, num_bytes = None, 0  # of sharded tensors: ranks may have different other tensors
    for tensor in tensors:
        if is_sharded(tensor):
            own = tensor.numel() * tensor.element_size()
            if getattr(tensor, "device_mesh", None) != mesh or num_bytes + own > MOST_BYTES:
                yield from _wholes(batch)
                batch, mesh, num_bytes = [], getattr(tensor, "device_mesh", None), 0
            num_bytes += own
        elif not batch:
            yield tensor.detach()
            continue
        batch.append(tensor.detach())
    yield from _wholes(batch)


def _wholes(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    results: dict[int, torch.Tensor] = {}
    together: dict[Axis | None, list[int]] = {}
    for place, tensor in enumerate(tensors):
        together.setdefault(_axis(tensor), []).append(place)
    for axis, places in together.items():
        chosen = [tensors[place] for place in places]
        # PyTorch gathers a single tensor in less memory
        joined = map(whole, chosen) if axis is None or len(chosen) == 1 else _gather(chosen, axis)
        results.update(zip(places, joined, strict=False))
    return [results[place] for place in range(len(tensors))]


def _axis(tensor: torch.Tensor) -> Axis | None:
    """Return the axis along which a tensor is sharded in consecutive parts; None for any other tensor."""
    if not is_sharded(tensor) or not tensor.numel():
        return None
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if not isinstance(tensor, DTensor) or tensor.device_mesh.get_coordinate() is None:
        return None
    part = distributed.local_part(tensor)
    if type(part) is not torch.Tensor:  # such as 8 bits with a scale, whose class gathers them
        return None
    cut = [dim for dim, placement in enumerate(tensor.placements) if not isinstance(placement, Replicate)]
    if len(cut) != 1 or type(tensor.placements[cut[0]]) is not Shard:
        return None
    return Axis(tensor.device_mesh, cut[0], part.dtype, part.device)


def _gather(tensors: Sequence[Any], axis: Axis) -> list[torch.Tensor]:
    num_ranks = axis.mesh.size(axis.dim)
    shapes = [_shapes(tensor, axis.dim, num_ranks) for tensor in tensors]
    begins = [0]
    for of_ranks in shapes:
        begins.append(begins[-1] + of_ranks[0].numel())  # no rank has more than the first
    mine = torch.zeros(begins[-1], dtype=axis.dtype, device=axis.device)
    for tensor, begin in zip(tensors, begins, strict=False):
        part = distributed.local_part(tensor).reshape(-1)
        mine[begin : begin + part.numel()] = part
    rows = [torch.empty_like(mine) for _ in range(num_ranks)]
    sent = [row.view(torch.uint8) for row in rows]  # numbers of every dtype travel as bytes
    all_gather(sent, mine.view(torch.uint8), group=axis.mesh.get_group(axis.dim))
    joined = []
    for tensor, of_ranks, begin in zip(tensors, shapes, begins, strict=False):
        pieces = [row[begin : begin + one.numel()].view(one) for row, one in zip(rows, of_ranks, strict=False)]
        joined.append(torch.cat(pieces, tensor.placements[axis.dim].dim))
    return joined


def _shapes(tensor: Any, axis: int, num_ranks: int) -> list[torch.Size]:
    """Return the shape of each rank's part: equal numbers of rows, and the rest on the last ranks."""
    dim, shape = tensor.placements[axis].dim, list(tensor.shape)
    most = -(-shape[dim] // num_ranks)
    rows = [max(0, min(most, shape[dim] - rank * most)) for rank in range(num_ranks)]
    return [torch.Size([*shape[:dim], one, *shape[dim + 1 :]]) for one in rows]


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
        works: list[Any] = [irecv(rows, group=group, group_src=after, tag=TAG) for rows in _rows(parts, after, number)]
        works += [isend(rows, group=group, group_dst=before, tag=TAG) for rows in _rows(parts, rank, number)]
        for work in works:
            work.wait()
        distance *= 2


def _rows(parts: torch.Tensor, first: int, number: int) -> list[torch.Tensor]:
    """Return `number` rows from `first` on, in two pieces if they wrap around the end."""
    after = first + number - parts.size(0)
    return [parts[first : first + number]] if after <= 0 else [parts[first:], parts[:after]]
