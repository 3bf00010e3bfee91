"""Cut the batches of one device into the shares of several."""

from typing import Any, List, NamedTuple, Optional

import torch

from .refusal import Refusal


class Share(NamedTuple):
    """This rank's part of one global batch."""

    global_size: int
    first: int
    size: int

    def weight(self, num_ranks: int) -> float:
        """Return by what a mean over this share counts in the mean over all ranks; 0 for a rank that has none."""
        return self.size * num_ranks / self.global_size


def share(global_size: int, rank: int, num_ranks: int) -> Share:
    """Return a rank's share: sizes differ by one at most, in the order of the batch."""
    least, more = divmod(global_size, num_ranks)
    first = rank * least + min(rank, more)
    return Share(global_size, first, least + (rank < more))


def of_indices(indices: List[Any], mine: Share) -> List[Any]:
    """Return this rank's indices; where it has none, the first stands in with weight 0, so that all ranks step."""
    return indices[mine.first : mine.first + mine.size] or indices[:1]


def length_of(batch: Any) -> int:
    """Return the number of samples of a collated batch: the first dim of all its tensors."""
    sizes = _sizes(batch)
    if not sizes:
        raise Refusal("a batch holds no tensor whose first dim counts samples", "run.loader() on a map-style dataset")
    if len(set(sizes)) > 1:
        raise Refusal(
            "the tensors of a batch differ in their first dim (%s), so it cannot be cut" % sorted(set(sizes)),
            "let the DataLoader make batches of indices (a map-style dataset), or yield samples one by one",
        )
    return sizes[0]


def cut(batch: Any, mine: Share) -> Any:
    """Return this rank's part of a collated batch."""
    first, last = (mine.first, mine.first + mine.size) if mine.size else (0, 1)
    if isinstance(batch, torch.Tensor):
        return batch[first:last] if batch.dim() else batch
    if isinstance(batch, dict):
        return type(batch)((key, cut(value, mine)) for key, value in batch.items())
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(cut(value, mine) for value in batch))
    if isinstance(batch, (list, tuple)):
        if len(batch) == mine.global_size and not any(isinstance(entry, torch.Tensor) for entry in batch):
            return batch[first:last]
        return type(batch)(cut(value, mine) for value in batch)
    return batch


def _sizes(batch: Any, found: Optional[List[int]] = None) -> List[int]:
    found = [] if found is None else found
    if isinstance(batch, torch.Tensor):
        if batch.dim():
            found.append(batch.size(0))
    elif isinstance(batch, dict):
        for value in batch.values():
            _sizes(value, found)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            _sizes(value, found)
    return found
