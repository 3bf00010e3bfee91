"""Gather sharded tensors, many by one message, because a message for each costs a round of all ranks."""

from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence

import torch
from torch.distributed import all_gather  # the original, before a proof hooks it

from ..pytorch import distributed

MOST_BYTES = 32 << 20  # of whole tensors in a message, which bounds its memory


class Axis(NamedTuple):
    """The mesh, axis, dtype and device that all tensors of one message share."""

    mesh: Any
    dim: int
    dtype: torch.dtype
    device: torch.device


def is_sharded(tensor: Any) -> bool:
    """Say whether other ranks hold parts of a tensor: a DTensor, or a weight in another rank's stage."""
    return hasattr(tensor, "full_tensor")


def is_dtensor(tensor: Any) -> bool:
    """Say whether a tensor is a DTensor, without the slow import of DTensor."""
    return hasattr(tensor, "placements")


def whole(tensor: Any) -> Any:
    """Return a whole tensor; every rank must call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def each_whole(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield whole tensors without gradients, in the same order.

    All ranks of a mesh must give its tensors in the same order, with those of other meshes at the same places between.
    """
    batch: List[torch.Tensor] = []
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


def _wholes(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    results: Dict[int, torch.Tensor] = {}
    together: Dict[Optional[Axis], List[int]] = {}
    for place, tensor in enumerate(tensors):
        together.setdefault(_axis(tensor), []).append(place)
    for axis, places in together.items():
        chosen = [tensors[place] for place in places]
        # PyTorch gathers a single tensor in less memory
        joined = map(whole, chosen) if axis is None or len(chosen) == 1 else _gather(chosen, axis)
        results.update(zip(places, joined))  # noqa: B905
    return [results[place] for place in range(len(tensors))]


def _axis(tensor: Any) -> Optional[Axis]:
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


def _gather(tensors: Sequence[Any], axis: Axis) -> List[torch.Tensor]:
    """Send all parts of a rank at once along an axis, and join the parts of each tensor."""
    num_ranks = axis.mesh.size(axis.dim)
    shapes = [_shapes(tensor, axis.dim, num_ranks) for tensor in tensors]
    begins = [0]
    for of_ranks in shapes:
        begins.append(begins[-1] + of_ranks[0].numel())  # no rank has more than the first
    mine = torch.zeros(begins[-1], dtype=axis.dtype, device=axis.device)
    for tensor, begin in zip(tensors, begins):  # noqa: B905
        part = distributed.local_part(tensor).reshape(-1)
        mine[begin : begin + part.numel()] = part
    rows = [torch.empty_like(mine) for _ in range(num_ranks)]
    sent = [row.view(torch.uint8) for row in rows]  # numbers of every dtype travel as bytes
    all_gather(sent, mine.view(torch.uint8), group=axis.mesh.get_group(axis.dim))
    joined = []
    for tensor, of_ranks, begin in zip(tensors, shapes, begins):  # noqa: B905
        pieces = [row[begin : begin + one.numel()].view(one) for row, one in zip(rows, of_ranks)]  # noqa: B905
        joined.append(torch.cat(pieces, tensor.placements[axis.dim].dim))
    return joined


def _shapes(tensor: Any, axis: int, num_ranks: int) -> List[torch.Size]:
    """Return the shape of each rank's part: equal numbers of rows, and the rest on the last ranks."""
    dim, shape = tensor.placements[axis].dim, list(tensor.shape)
    most = -(-shape[dim] // num_ranks)
    rows = [max(0, min(most, shape[dim] - rank * most)) for rank in range(num_ranks)]
    return [torch.Size([*shape[:dim], one, *shape[dim + 1 :]]) for one in rows]
