"""What a convolution may take of the device beside its tensors: its library chooses an algorithm when it runs."""

from typing import Any, Callable, Dict, List

import torch

_SINGLE = 4
_TILES = 36 / 16
"""Winograd's algorithm makes 36 numbers of 16 (A. Lavin and S. Gray, arXiv:1509.09308: F(4×4, 3×3))."""


def _forward(args: Any, result: Any) -> List[int]:
    inputs, weight = args[:2]
    return [_most(weight, inputs, result)]


def _backward(args: Any, _: Any) -> List[int]:
    gradient, inputs, weight = args[:3]
    wanted = args[-1]
    return [_most(weight, inputs, gradient)] * sum(map(bool, wanted[:2]))  # of the inputs, and of the weight


def _most(weight: torch.Tensor, *tensors: torch.Tensor) -> int:
    """Return the most bytes: copies of the tensors in another order, or in Winograd's tiles of 32-bit numbers."""
    if all(length == 1 for length in weight.shape[2:]):
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return int(sum(tensor.numel() for tensor in tensors) * _SINGLE * _TILES)


WORKSPACES: Dict[Any, Callable[[Any, Any], List[int]]] = {
    torch.ops.aten.convolution.default: _forward,
    torch.ops.aten.convolution_backward.default: _backward,
}
"""For each operation: from its arguments and result the most bytes of its workspaces, one after the other."""
