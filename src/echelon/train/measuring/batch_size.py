"""The samples and tokens of a batch, as far as its form tells them."""

from typing import Any, Dict, Optional, Sequence, Union

import torch

_DEEPEST = 4
_num_ranks = 1


def share(num_ranks: int) -> None:
    """Say that so many ranks get each batch, and compute it together."""
    global _num_ranks
    _num_ranks = num_ranks


def of_rank(batch: Any) -> Dict[str, float]:
    """Return what this rank adds to the samples and tokens of all ranks."""
    return {name: number / _num_ranks for name, number in size_of(batch).items()}


def size_of(batch: Any) -> Dict[str, int]:
    """Return the samples and the tokens of a batch, without what its form does not tell.

    The first tensor has a row for each sample. If it has whole numbers in two dims, they are tokens.
    """
    tensor = _first_tensor(batch, 0)
    if tensor is None or not tensor.dim():
        return {}
    is_text = tensor.dim() == 2 and tensor.dtype in (torch.int64, torch.int32)
    return {"samples": tensor.shape[0], **({"tokens": tensor.numel()} if is_text else {})}


def _first_tensor(batch: Any, depth: int) -> Optional[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return batch
    if depth >= _DEEPEST:
        return None
    parts: Union[Sequence[Any], Any] = ()
    if isinstance(batch, (list, tuple)):
        parts = batch
    elif hasattr(batch, "values") and hasattr(batch, "keys"):
        parts = batch.values()
    return next((tensor for part in parts if (tensor := _first_tensor(part, depth + 1)) is not None), None)
