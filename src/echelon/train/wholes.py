"""Tensors that are spread are made whole, many by one message: each by its own costs a turn of all ranks."""

from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

MOST_BYTES = 32 << 20  # of whole tensors at a time: what costs a turn is then little beside what travels


class Axis(NamedTuple):
    """What the tensors of one message have in common."""

    mesh: Any
    dim: int
    dtype: torch.dtype
    device: torch.device


def each_whole(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield tensors with all their parts, in this order; every rank that has parts must ask for the same."""
    batch: List[Any] = []
    num_bytes = 0  # of what is spread: of that all ranks know how much it is
    for tensor in tensors:
        batch.append(tensor.detach())
        num_bytes += tensor.numel() * tensor.element_size() if is_spread(tensor) else 0
        if not num_bytes or num_bytes > MOST_BYTES:
            yield from _wholes(batch)
            batch, num_bytes = [], 0
    yield from _wholes(batch)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return one with all its parts."""
    return next(each_whole([tensor]))


def is_spread(tensor: Any) -> bool:
    """Say whether a tensor is a DTensor."""
    return hasattr(tensor, "full_tensor")


def _wholes(tensors: Sequence[Any]) -> List[torch.Tensor]:
    found: Dict[int, torch.Tensor] = {}
    together: Dict[Axis, List[int]] = {}
    for place, tensor in enumerate(tensors):
        axis = _axis(tensor)
        if axis is None:
            found[place] = tensor.full_tensor() if is_spread(tensor) else tensor
        else:
            together.setdefault(axis, []).append(place)
    for axis, places in together.items():
        found.update(zip(places, _gather([tensors[place] for place in places], axis)))  # noqa: B905
    return [found[place] for place in range(len(tensors))]


def _axis(tensor: Any) -> Optional[Axis]:
    """Return how a tensor is cut if that is along one axis of its ranks, in parts that follow each other."""
    if not is_spread(tensor) or not tensor.numel():
        return None
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if not isinstance(tensor, DTensor):
        return None
    cut = [dim for dim, placement in enumerate(tensor.placements) if not isinstance(placement, Replicate)]
    if len(cut) != 1 or type(tensor.placements[cut[0]]) is not Shard:
        return None
    return Axis(tensor.device_mesh, cut[0], tensor.dtype, tensor._local_tensor.device)


def _gather(tensors: Sequence[Any], axis: Axis) -> List[torch.Tensor]:
    """Let each rank of an axis send all its parts at once, and join those of each tensor."""
    num_ranks = axis.mesh.size(axis.dim)
    shapes = [_shapes(tensor, axis.dim, num_ranks) for tensor in tensors]
    longest = sum(shape[0].numel() for shape in shapes)  # no rank has more than the first
    mine = torch.zeros(longest, dtype=axis.dtype, device=axis.device)
    parts = torch.cat([tensor._local_tensor.reshape(-1) for tensor in tensors])
    mine[: parts.numel()] = parts
    every = torch.empty(num_ranks * longest, dtype=axis.dtype, device=axis.device)
    rows = list(every.view(num_ranks, longest))
    outputs = [row.view(torch.uint8) for row in rows]  # whatever the numbers are, they travel as bytes
    dist.all_gather(outputs, mine.view(torch.uint8), group=axis.mesh.get_group(axis.dim))
    joined, begins = [], [0] * num_ranks
    for tensor, of_ranks in zip(tensors, shapes):  # noqa: B905
        pieces = []
        for rank, shape in enumerate(of_ranks):
            pieces.append(rows[rank][begins[rank] : begins[rank] + shape.numel()].view(shape))
            begins[rank] += shape.numel()
        joined.append(torch.cat(pieces, tensor.placements[axis.dim].dim))
    return joined


def _shapes(tensor: Any, axis: int, num_ranks: int) -> Tuple[torch.Size, ...]:
    """Return what each rank has of a tensor: as many rows as the others, and the last ones what is left."""
    dim, shape = tensor.placements[axis].dim, list(tensor.shape)
    most = -(-shape[dim] // num_ranks)
    rows = [max(0, min(most, shape[dim] - rank * most)) for rank in range(num_ranks)]
    return tuple(torch.Size([*shape[:dim], one, *shape[dim + 1 :]]) for one in rows)
