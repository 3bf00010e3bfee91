"""Which part of a batch a rank computes, and by how much its loss counts."""

from typing import Any, Callable, Iterator, List, Sequence, Tuple, Union

import torch
from torch.utils.data import DataLoader

from ..batches import of_indices, rows_of, twin_of
from ..view.tensors import View, own_part
from .axes import Axes
from .strategy import StrategyError

Tensors = Union[torch.Tensor, Sequence[torch.Tensor]]
IGNORED = -100  # the default of PyTorch's losses


def tuple_of(given: Any) -> Tuple[Any, ...]:
    """Return inputs as the arguments of a model."""
    return tuple(given) if isinstance(given, (tuple, list)) else (given,)


def count_of(targets: Any) -> int:
    """Return over how much a mean loss is: the targets that are not -100 where they are classes, else the rows."""
    first = tuple_of(targets)[0]
    if not isinstance(first, torch.Tensor) or not first.dim():
        return 1
    if first.dtype == torch.int64:
        return int((first != IGNORED).sum())
    return first.size(0)


def refuse_views(*given: Any) -> None:
    """Refuse batches that are shared already, which would be shared twice."""
    if any(isinstance(one, View) for each_of in given for one in tuple_of(each_of)):
        raise StrategyError(
            "the batch comes from run.loader(), and has been shared among all ranks already",
            hint="the loader itself, or for inputs, targets in trained.loader(loader): trained.step(…, rows=True)",
        )


def own_rows(given: Any, axes: Axes) -> Any:
    """Return this rank's rows of a whole batch."""

    def cut(tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or not tensor.dim():
            return tensor
        number = axes.strategy.num_data
        if tensor.size(0) < number:
            raise StrategyError(
                "the batch has %d rows, and replicate × shard is %d" % (tensor.size(0), number),
                hint="a larger batch, or fewer ranks on these axes",
            )
        return own_part(tensor, axes.data_place, rows_of(tensor.size(0), number))

    return each(cut, given)


def in_parts(given: Any, number: int, *, is_even: bool) -> List[Any]:
    """Cut rows into the parts that are computed one after another."""
    if number == 1:
        return [given]
    parts: List[List[Any]] = [[] for _ in range(number)]
    for tensor in tuple_of(given):
        if not isinstance(tensor, torch.Tensor) or not tensor.dim():
            pieces: Sequence[Any] = [tensor] * number
        elif tensor.size(0) < number or (is_even and tensor.size(0) % number):
            raise StrategyError(
                "a rank has %d rows of the batch, and accumulation is %d" % (tensor.size(0), number),
                hint="a batch of a multiple of %d rows on each rank" % number,
            )
        else:
            pieces = torch.split(tensor, list(rows_of(tensor.size(0), number)))
        for part, piece in zip(parts, pieces):  # noqa: B905
            part.append(piece)
    return [tuple(part) if isinstance(given, (tuple, list)) else part[0] for part in parts]


def each(change: Callable[[Any], Any], given: Any) -> Any:
    """Return a batch with each of its tensors changed."""
    return tuple(change(one) for one in given) if isinstance(given, (tuple, list)) else change(given)


class OwnRows:
    """A loader that loads this rank's rows of every batch alone; all ranks draw the same order."""

    def __init__(self, loader: "DataLoader[Any]", axes: Axes) -> None:
        if loader.batch_sampler is None:
            raise StrategyError(
                "the loader makes no batches of samples by index, so no rank could load its rows alone",
                hint="pass whole batches: trained.step(inputs, targets)",
            )
        self._loader = loader
        self._own = twin_of(loader, batch_sampler=_OwnIndices(loader.batch_sampler, axes))

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._own)


class _OwnIndices:
    def __init__(self, batches: Any, axes: Axes) -> None:
        self._batches, self._axes = batches, axes

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[List[int]]:
        number, place = self._axes.strategy.num_data, self._axes.data_place
        for indices in self._batches:
            if len(indices) < number:
                raise StrategyError(
                    "the batch has %d rows, and replicate × shard is %d" % (len(indices), number),
                    hint="drop_last=True, or a larger batch",
                )
            yield of_indices(list(indices), place, rows_of(len(indices), number))
