"""The tensors of a record: how they are read, joined and compared. No other file of this room imports torch."""

import os
from collections.abc import Sequence
from typing import Any

import torch

from echelon.train.check.closeness import NEAR, NEGLIGIBLE, apart, distance, doubles, is_near, multiple

__all__ = ["NEAR", "NEGLIGIBLE", "apart", "distance", "doubles", "is_near", "multiple"]

Tensor = torch.Tensor
Tensors = dict[str, Tensor]
MOST_NUMBERS = 4096  # of each tensor that enter a combination


def load(path: str) -> Any:
    """Return what a rank saved; None where there is no file."""
    return torch.load(path, weights_only=True) if os.path.exists(path) else None


def is_same(tensor: Tensor, other: Tensor | None) -> bool:
    """Say whether two tensors are equal to the bit."""
    return other is not None and tensor.shape == other.shape and bool((tensor == other).all())


def joined(pieces: Sequence[Tensor], dim: int) -> Tensor | None:
    """Return pieces one after the other along a dim; None where their shapes do not allow that."""
    try:
        return torch.cat(list(pieces), dim)
    except RuntimeError:
        return None


def total(tensors: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors of one shape, in float64."""
    return torch.stack([doubles(tensor) for tensor in tensors]).sum(0)


def combination(wanted: Sequence[Tensor], parts: Sequence[Sequence[Tensor]]) -> tuple[list[float], bool]:
    """Return the weights of the least squares of ranks' tensors, and whether their sum is right but for rounding."""
    columns = torch.stack([torch.cat([_some(tensor) for tensor in tensors]) for tensors in parts], 1)
    target = torch.cat([_some(tensor) for tensor in wanted])
    weights = torch.linalg.lstsq(columns, target.unsqueeze(1)).solution.flatten()
    return weights.tolist(), is_near(columns @ weights, target)


def _some(tensor: Tensor) -> Tensor:
    numbers = tensor.double().flatten()
    return numbers[:: max(1, numbers.numel() // MOST_NUMBERS)]
