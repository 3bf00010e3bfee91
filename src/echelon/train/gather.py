"""Tensors that are spread are made whole, many by one message: each by its own costs a turn of all ranks."""

from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence

import torch
from torch.distributed import all_gather  # itself, also where a proof counts what a script sends

MOST_BYTES = 32 << 20  # of whole tensors in a message, which bounds what it needs of memory


class Axis(NamedTuple):
    """What the tensors of one message have in common."""

    mesh: Any
    dim: int
    dtype: torch.dtype
    device: torch.device


def is_sharded(tensor: Any) -> bool:
    """Say whether other ranks have parts of a tensor: a DTensor, or a weight of another rank's stage."""
    return hasattr(tensor, "full_tensor")


def is_dtensor(tensor: Any) -> bool:
    """Say whether a tensor is a DTensor, without the import of DTensor, which takes a rank time."""
    return hasattr(tensor, "placements")


def whole(tensor: Any) -> Any:
    """Return a tensor with all its parts; every rank must ask."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def each_whole(tensors: Iterable[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield tensors with all their parts and without gradients, in this order.

    All ranks of a mesh must give its tensors in the same order, with those of other meshes at the same places between.
    """
    batch: List[torch.Tensor] = []
    mesh, num_bytes = None, 0  # of what is sharded: ranks may differ in what else they have
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
    found: Dict[int, torch.Tensor] = {}
    together: Dict[Optional[Axis], List[int]] = {}
    for place, tensor in enumerate(tensors):
        together.setdefault(_axis(tensor), []).append(place)
    for axis, places in together.items():
        chosen = [tensors[place] for place in places]
        # one alone is joined by PyTorch in less memory
        joined = map(whole, chosen) if axis is None or len(chosen) == 1 else _gather(chosen, axis)
        found.update(zip(places, joined))  # noqa: B905
    return [found[place] for place in range(len(tensors))]


def _axis(tensor: Any) -> Optional[Axis]:
    """Return how a tensor is cut if that is along one axis of its ranks, in parts that follow each other."""
    if not is_sharded(tensor) or not tensor.numel():
        return None
    from torch.distributed.tensor import DTensor, Replicate, Shard

    if not isinstance(tensor, DTensor) or tensor.device_mesh.get_coordinate() is None:
        return None
    if type(tensor._local_tensor) is not torch.Tensor:  # such as 8 bits with a scale, that know how to be gathered
        return None
    cut = [dim for dim, placement in enumerate(tensor.placements) if not isinstance(placement, Replicate)]
    if len(cut) != 1 or type(tensor.placements[cut[0]]) is not Shard:
        return None
    return Axis(tensor.device_mesh, cut[0], tensor._local_tensor.dtype, tensor._local_tensor.device)


def _gather(tensors: Sequence[Any], axis: Axis) -> List[torch.Tensor]:
    """Let each rank of an axis send all its parts at once, and join those of each tensor."""
    num_ranks = axis.mesh.size(axis.dim)
    shapes = [_shapes(tensor, axis.dim, num_ranks) for tensor in tensors]
    begins = [0]
    for of_ranks in shapes:
        begins.append(begins[-1] + of_ranks[0].numel())  # no rank has more than the first
    mine = torch.zeros(begins[-1], dtype=axis.dtype, device=axis.device)
    for tensor, begin in zip(tensors, begins):  # noqa: B905
        part = tensor._local_tensor.reshape(-1)
        mine[begin : begin + part.numel()] = part
    rows = [torch.empty_like(mine) for _ in range(num_ranks)]
    sent = [row.view(torch.uint8) for row in rows]  # whatever the numbers are, they travel as bytes
    all_gather(sent, mine.view(torch.uint8), group=axis.mesh.get_group(axis.dim))
    joined = []
    for tensor, of_ranks, begin in zip(tensors, shapes, begins):  # noqa: B905
        pieces = [row[begin : begin + one.numel()].view(one) for row, one in zip(rows, of_ranks)]  # noqa: B905
        joined.append(torch.cat(pieces, tensor.placements[axis.dim].dim))
    return joined


def _shapes(tensor: Any, axis: int, num_ranks: int) -> List[torch.Size]:
    """Return what each rank has of a tensor: as many rows as the others, and the last ones what is left."""
    dim, shape = tensor.placements[axis].dim, list(tensor.shape)
    most = -(-shape[dim] // num_ranks)
    rows = [max(0, min(most, shape[dim] - rank * most)) for rank in range(num_ranks)]
    return [torch.Size([*shape[:dim], one, *shape[dim + 1 :]]) for one in rows]
