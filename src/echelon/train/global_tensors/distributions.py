"""The batch shape that a torch.distributions object keeps beside its tensors."""

from typing import Any, List

import torch
from torch.distributions import Distribution

from ...pytorch import internals


def with_sizes(value: Any, before: List[torch.Tensor], after: List[torch.Tensor]) -> Any:
    """Give a distribution the batch shape of its changed tensors; return any other value as it is."""
    if isinstance(value, Distribution):
        for old, new in zip(before, after):  # noqa: B905
            changed = [dim for dim, size in enumerate(old.shape) if old.dim() == new.dim() and new.size(dim) != size]
            if changed:
                _resize(value, changed[0], old.size(changed[0]), new.size(changed[0]))
                break
    return value


def _resize(value: Distribution, dim: int, old: int, new: int) -> None:
    shape = list(internals.batch_shape(value))
    if dim < len(shape) and shape[dim] == old:
        shape[dim] = new
        internals.set_batch_shape(value, shape)
