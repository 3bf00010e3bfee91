"""Share the batches of one device among ranks."""

from typing import Any, List, Sequence, Tuple

import torch
import torch.distributed as dist

from .view.tensors import Sharded, map_tensors, own_part, tensors_of
from .world import World


def rows_of(size: int, num_ranks: int) -> Tuple[int, ...]:
    """Return how many samples of a batch each rank has: they differ by one at most, in the order of the batch."""
    least, more = divmod(size, num_ranks)
    return tuple(least + (rank < more) for rank in range(num_ranks))


def of_indices(indices: List[Any], rank: int, rows: Sequence[int]) -> List[Any]:
    """Return a rank's indices; where it has none, the first stands in, so that all step, and counts for nothing."""
    first = sum(rows[:rank])
    return indices[first : first + rows[rank]] or indices[:1]


def length_of(batch: Any) -> int:
    """Return the number of samples of a collated batch: the first dim of all its tensors; 0 where they differ."""
    sizes = {one.size(0) for one in tensors_of(batch) if one.dim()}
    return sizes.pop() if len(sizes) == 1 else 0


def has_rows(batch: Any, size: int) -> bool:
    """Say whether a collated batch can be cut: each tensor has a row for each sample."""
    tensors = tensors_of(batch)
    return bool(tensors) and all(one.dim() and one.size(0) == size for one in tensors)


def of_whole(batch: Any, world: World, rows: Tuple[int, ...]) -> Any:
    """View a batch of which every rank has the whole."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        return Sharded(own_part(tensor, world.rank, rows), world, rows) if tensor.dim() else tensor

    return map_tensors(batch, change)


def of_parts(batch: Any, world: World, rows: Tuple[int, ...], *, may_be_ragged: bool) -> Any:
    """View a batch of which every rank has its samples; a collate function may have made other rows than samples."""
    tensors = [one for one in tensors_of(batch) if one.dim()]
    counts = _all_counts(tensors, world, rows) if may_be_ragged else [rows] * len(tensors)
    by_tensor = {id(tensor): count for tensor, count in zip(tensors, counts)}  # noqa: B905

    def change(tensor: torch.Tensor) -> torch.Tensor:
        return Sharded(tensor, world, by_tensor[id(tensor)]) if tensor.dim() else tensor

    return _with_whole_lists(map_tensors(batch, change), world, rows)


def _all_counts(tensors: List[torch.Tensor], world: World, rows: Tuple[int, ...]) -> List[Tuple[int, ...]]:
    """Return, of each tensor, how many rows every rank has."""
    has_samples = rows[world.rank] > 0
    mine = torch.tensor([one.size(0) if has_samples else 0 for one in tensors], device=world.device)
    found = [torch.empty_like(mine) for _ in rows]
    dist.all_gather(found, mine)
    return [tuple(int(one) for one in column) for column in torch.stack(found, 1).tolist()]


def _with_whole_lists(batch: Any, world: World, rows: Tuple[int, ...]) -> Any:
    """Let lists of names and the like have an entry for each sample of the batch, whoever loaded it."""
    if type(batch) is dict:
        return {key: _with_whole_lists(value, world, rows) for key, value in batch.items()}
    if type(batch) in (list, tuple):
        is_list_of_samples = len(batch) == max(1, rows[world.rank]) and not tensors_of(batch)
        if is_list_of_samples and not any(isinstance(one, (list, tuple, dict)) for one in batch):
            return type(batch)(_gathered_list(list(batch), world, rows))
        return type(batch)(_with_whole_lists(value, world, rows) for value in batch)
    return batch


def _gathered_list(entries: List[Any], world: World, rows: Tuple[int, ...]) -> List[Any]:
    found: List[Any] = [None for _ in rows]
    dist.all_gather_object(found, entries[: rows[world.rank]])
    return [entry for part in found for entry in part]
