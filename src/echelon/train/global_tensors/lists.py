"""Lists and arrays with an entry for each sample, such as graphs, strings or numpy rows: a rank's part is a slice."""

import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import nn

from .tensors import map_entries, tensors_of

Path = tuple[Any, ...]
"""The keys and places that lead to a value among nested dicts, lists and tuples."""


class Hidden:
    """A list that `map_tensors` leaves alone: its entries are samples, and their tensors have no rows of samples."""

    __slots__ = ("content",)

    def __init__(self, content: object) -> None:
        self.content = content


def is_array(value: object) -> bool:
    """Say whether a value is an array of numpy with at least one dim."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.ndim > 0


def leading(args: Any, kwargs: Any, sizes: Collection[int]) -> torch.Tensor | None:
    """Return the first tensor of a call's arguments; or one that stands for the first array or list of samples.

    `sizes` are the known numbers of samples of batches.
    """
    return next((one for value in (*args, *kwargs.values()) if (one := _leading(value, sizes)) is not None), None)


def _leading(value: Any, sizes: Collection[int]) -> torch.Tensor | None:
    if is_array(value) or is_of_samples(value, sizes):
        return torch.empty(len(value), 1)
    if isinstance(value, (tuple, list, dict)):
        return leading(value.values() if isinstance(value, dict) else value, {}, sizes)
    return next((one for one in tensors_of(value) if one.dim()), None)


def is_of_samples(value: Any, sizes: Collection[int]) -> bool:
    """Say whether a list holds samples, rather than arguments: several of one kind, each with its own size.

    A list as long as a batch holds samples too, if its tensors are not as long as a batch.
    """
    if type(value) not in (list, tuple) or len(value) < 2 or len({type(one) for one in value}) > 1:
        return False
    first = value[0]
    if isinstance(first, torch.Tensor) or is_array(first):
        shapes = [tuple(one.shape) for one in value]
        return _are_samples(shapes) or (len(value) in sizes and all(one and one[0] not in sizes for one in shapes))
    if isinstance(first, (list, tuple)):
        return not any(isinstance(one, torch.Tensor) and one.dim() > 1 for one in first)
    return isinstance(first, (str, bytes, dict)) or (_is_object(first) and bool(tensors_of(first) or vars(first)))


def _are_samples(shapes: list[tuple[int, ...]]) -> bool:
    """Say whether tensors of these shapes are samples of a list, and not x and y of a batch, with as many rows."""
    if len({len(one) for one in shapes}) > 1 or not shapes[0]:
        return False
    are_alike = len({one[0] for one in shapes}) == 1
    return len(shapes[0]) == 1 or (len(set(shapes)) > 1 and not (are_alike and shapes[0][0] > len(shapes)))


def _is_object(value: object) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type)) and not callable(value)


def hide(value: object, replace: Callable[[object], object]) -> object:
    """Return a value with the result of `replace`, hidden, in place of each list or array for which there is one."""
    if isinstance(value, (tuple, list)) or is_array(value):
        changed = replace(value)
        if changed is not None:
            return Hidden(changed)
    if isinstance(value, (tuple, list)):
        return map_entries(value, [hide(one, replace) for one in value])
    if isinstance(value, dict):
        return map_entries(value, [hide(one, replace) for one in value.values()])
    return value


def show(value: object) -> object:
    """Return a value with the lists that `hide` has hidden."""
    if isinstance(value, Hidden):
        return value.content
    if isinstance(value, (tuple, list)):
        return map_entries(value, [show(one) for one in value])
    if isinstance(value, dict):
        return map_entries(value, [show(one) for one in value.values()])
    return value


def doubled(value: Any) -> object:
    """Return a list or array of samples with each sample twice."""
    if is_array(value):
        return sys.modules["numpy"].concatenate([value, value])
    entries: list[Any] = [*value, *value]
    return type(value)(entries)


def paths(value: object, size: int) -> frozenset[Path]:
    """Return the paths of all lists in a value that have `size` entries, and tensors in them."""
    return frozenset(path for path, one in _nested(value) if len(one) == size and tensors_of(one))


def _nested(value: object, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, (list, tuple)):
        yield path, value
    if isinstance(value, (list, tuple, dict)):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _nested(entry, (*path, key))


def length(value: object, of_lists: frozenset[Path]) -> int:
    """Return the number of entries of the lists at these paths; 0 if they differ."""
    lengths = {len(one) for path, one in _nested(value) if path in of_lists}
    return lengths.pop() if len(lengths) == 1 else 0


def hide_at(value: object, of_lists: frozenset[Path], path: Path = ()) -> object:
    """Return a value with its lists at these paths hidden."""
    if path in of_lists:
        return Hidden(value)
    if isinstance(value, dict):
        return map_entries(value, [hide_at(entry, of_lists, (*path, key)) for key, entry in value.items()])
    if isinstance(value, (list, tuple)):
        return map_entries(value, [hide_at(entry, of_lists, (*path, at)) for at, entry in enumerate(value)])
    return value
