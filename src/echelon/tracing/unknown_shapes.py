"""Operations whose result has a shape that depends on values: the largest shape that is possible is assumed."""

from collections.abc import Callable
from typing import Any

import torch

from ..pytorch import internals

aten = torch.ops.aten
_fakes = internals.fake_tensors()
assumed: list[str] = []  # the names of the operations whose shape was assumed


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operation of PyTorch on fake tensors; masks that have data select what they select."""
    if func in _WITH_MASKS and any(map(is_fake, (args[0], *args[2:3]))):
        args = (args[0], [_selected(index) for index in args[1]], *args[2:])
        args = (args[0], [index for indices in args[1] for index in indices], *args[2:])
    try:
        return func(*args, **kwargs)
    except (_fakes.DynamicOutputShapeException, _fakes.DataDependentOutputException):
        largest = _LARGEST.get(func)
        if largest is None:
            raise
        if func not in _KNOWN or is_fake(args[1]):
            assumed.append(str(func))
        return largest(*args, **kwargs)


def notes() -> list[str]:
    """Return a sentence if shapes were assumed."""
    names = sorted(set(assumed))
    return ["the largest shape was assumed for the results of {}".format(", ".join(names))] if names else []


def _selected(index: Any) -> list[Any]:
    """Return an index as it is; a mask that has data as the numbers of what it selects."""
    is_mask = isinstance(index, torch.Tensor) and index.dtype == torch.bool and not is_fake(index)
    return list(index.nonzero(as_tuple=True)) if is_mask else [index]


def _nonzero(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_zeros((tensor.numel(), tensor.dim()), dtype=torch.int64)


def _masked_select(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)  # type: ignore[no-untyped-call]
    return tensor.new_zeros((shape.numel(),))


def _index(tensor: torch.Tensor, indices: list[Any]) -> torch.Tensor:
    selected: torch.Tensor = aten.index.Tensor(tensor, _numbers(indices))
    return selected


def _index_put(tensor: torch.Tensor, *_: object) -> Any:
    return torch.empty_like(tensor)


def _index_put_(tensor: torch.Tensor, *_: object) -> Any:
    return tensor


def _numbers(indices: list[Any]) -> list[Any]:
    """Return indices in which each mask is replaced by the numbers that it can select at most."""
    numbers: list[Any] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            numbers += [index.new_zeros((index.numel(),), dtype=torch.int64)] * index.dim()
        else:
            numbers.append(index)
    return numbers


def _unique(tensor: torch.Tensor, *_: object, **__: object) -> Any:
    counts = tensor.new_zeros((tensor.numel(),), dtype=torch.int64)
    return tensor.new_zeros((tensor.numel(),)), counts, counts.clone()


def _repeat_interleave(repeats: torch.Tensor, output_size: Any = None) -> torch.Tensor:
    return repeats.new_zeros((output_size or repeats.numel(),))


def _ctc_loss(scores: torch.Tensor, targets: torch.Tensor, *_: object, **__: object) -> Any:
    rows, steps, width = scores.shape[1], scores.shape[0], targets.shape[-1]
    return scores.new_zeros((rows,)), scores.new_zeros((rows, steps, 2 * width + 1))


def _pack(tensor: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
    """Return the rows of sequences one after the other, and how many sequences are as long as each step."""
    rows, steps = tensor.shape[:2] if batch_first else (tensor.shape[1], tensor.shape[0])
    known = [steps] * rows if is_fake(lengths) else lengths.tolist()
    counts = [sum(length > step for length in known) for step in range(max(known))]
    with internals.without_modes():
        sizes = torch.tensor(counts)
    return tensor.new_zeros((sum(counts), *tensor.shape[2:])), sizes


def _bincount(tensor: torch.Tensor, _: object = None, minlength: int = 0) -> torch.Tensor:
    return tensor.new_zeros((max(minlength, 1),))


def _equal(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.shape == second.shape


_LARGEST: dict[Any, Callable[..., Any]] = {
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten.index.Tensor: _index,
    aten.index_put.default: _index_put,
    aten.index_put_.default: _index_put_,
    internals.unique(): _unique,
    aten.unique_dim.default: _unique,
    aten.unique_consecutive.default: _unique,
    aten.repeat_interleave.Tensor: _repeat_interleave,
    aten.equal.default: _equal,
    aten.bincount.default: _bincount,
    internals.pack(): _pack,
    internals.ctc_loss()[1]: _ctc_loss,
}
_KNOWN = (internals.pack(),)  # operations whose shape is known if their second argument has data
_WITH_MASKS = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)


def is_fake(value: object) -> bool:
    """Say whether a value is a tensor without data."""
    return isinstance(value, _fakes.FakeTensor)


_SINGLE = 4
_TILES = 36 / 16
"""Winograd's algorithm makes 36 numbers of 16 (A. Lavin and S. Gray, arXiv:1509.09308: F(4×4, 3×3))."""


def _forward(args: Any, result: Any) -> list[int]:
    inputs, weight = args[:2]
    return [_most(weight, inputs, result)]


def _backward(args: Any, _: object) -> list[int]:
    gradient, inputs, weight = args[:3]
    wanted = args[-1]
    return [_most(weight, inputs, gradient)] * sum(map(bool, wanted[:2]))  # of the inputs, and of the weight


def _most(weight: torch.Tensor, *tensors: torch.Tensor) -> int:
    """Return the most bytes: copies of the tensors in another order, or in Winograd's tiles of 32-bit numbers."""
    if all(length == 1 for length in weight.shape[2:]):
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return int(sum(tensor.numel() for tensor in tensors) * _SINGLE * _TILES)


WORKSPACES: dict[Any, Callable[[Any, Any], list[int]]] = {
    torch.ops.aten.convolution.default: _forward,
    torch.ops.aten.convolution_backward.default: _backward,
}
"""For each operation: from its arguments and result the most bytes of its workspaces, one after the other."""
