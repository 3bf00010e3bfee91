"""Cut a batch into the parts that ranks compute, and count the targets of a loss.

A batch is a tensor, or tensors in tuples, lists and dicts. A model gets a tuple or list as its arguments, and a dict as
its arguments by name; a dict that is one argument stands in a tuple.

Check that a loss is a mean over its targets: rows, tokens, or the number that `count` returns.

A loss that leaves out other targets, weighs classes, or compares samples of the batch with each other changes when
ranks compute parts of the batch. The check needs no communication: each rank halves its own rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..batches import of_indices, rows_of, twin_of
from ..global_tensors.tensors import GlobalTensor, own_part
from ..wire.gather import whole
from .axes import Axes
from .strategy import Strategy, StrategyError

IGNORED = -100  # the default of PyTorch's losses


def arguments_of(inputs: object) -> tuple[tuple[Any, ...], dict[str, object]]:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)), {}


def each(change: Callable[[torch.Tensor], object], batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: each(change, one) for key, one in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*[each(change, one) for one in batch])
    return type(batch)(each(change, one) for one in batch) if type(batch) in (tuple, list) else batch


def tensors_of(batch: object) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    each(tensors.append, batch)
    return tensors


def with_tensors(batch: object, tensors: Sequence[torch.Tensor]) -> Any:
    replacements = iter(tensors)
    return each(lambda _: next(replacements), batch)


def count_of(targets: object) -> int:
    """Return the number of targets of a mean loss: the classes other than -100, or else the rows."""
    tensors = tensors_of(targets)
    if not tensors or not tensors[0].dim():
        return 1
    first = tensors[0]
    if first.dtype == torch.int64:
        return int((first != IGNORED).sum())
    return first.size(0)


def own_loss(outputs: object) -> Any:
    """Return the loss from the output of a model: the output itself, or its entry or attribute `loss`."""
    if isinstance(outputs, torch.Tensor):
        return outputs
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    raise StrategyError(
        f"the model returns a {type(outputs).__name__} without a loss, and run.parallelize() got no loss function",
        hint="run.parallelize(model, strategy, loss=function_of_outputs_and_targets)",
    )


def refuse_views(*batches: object) -> None:
    if any(isinstance(one, GlobalTensor) for one in tensors_of(batches)):
        raise StrategyError(
            "the batch comes from run.loader(), which has already shared it among all ranks",
            hint="pass batches of the script's own loader, or use for inputs, targets in trained.loader(loader): "
            "trained.step(…, rows=True)",
        )


def own_rows(batch: object, axes: Axes) -> Any:
    def cut(tensor: torch.Tensor) -> torch.Tensor:
        return own_part(tensor, axes.data_place, axes.rows_of(tensor.size(0))) if tensor.dim() else tensor

    return each(cut, batch)


def in_parts(batch: object, number: int, *, is_even: bool) -> list[object]:
    """Cut rows into the parts that are computed one after another."""

    def piece(tensor: torch.Tensor, place: int) -> torch.Tensor:
        if number == 1 or not tensor.dim():
            return tensor
        if tensor.size(0) < number or (is_even and tensor.size(0) % number):
            raise StrategyError(
                f"a rank has {tensor.size(0)} rows of the batch, but accumulation is {number}",
                hint=f"use a batch that gives each rank a multiple of {number} rows",
            )
        rows = rows_of(tensor.size(0), number)
        return tensor.narrow(0, sum(rows[:place]), rows[place])

    return [each(lambda tensor: piece(tensor, place), batch) for place in range(number)]  # noqa: B023


class OwnRows:
    """A loader that loads only this rank's rows of every batch; all ranks draw the same order."""

    def __init__(self, loader: "DataLoader[object]", axes: Axes) -> None:
        if loader.batch_sampler is None:
            raise StrategyError(
                "the loader does not make batches of samples by index, so no rank can load its rows alone",
                hint="pass whole batches: trained.step(inputs, targets)",
            )
        self._loader, self._axes = loader, axes
        self.own = twin_of(loader, batch_sampler=_OwnIndices(loader.batch_sampler, axes))

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.own)

    @property
    def inner(self) -> "DataLoader[object]":
        return self._loader

    def behind(self, change: Callable[[object], object], more: dict[str, Any]) -> "OwnRows":
        """Return the loader with other batches of indices, which `change` makes of its own, and other attributes."""
        indices = change(self._loader.batch_sampler)
        return OwnRows(twin_of(self._loader, batch_sampler=indices, **more), self._axes)


class _OwnIndices:
    def __init__(self, batches: Any, axes: Axes) -> None:
        self._batches, self._axes = batches, axes

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        for indices in self._batches:
            yield of_indices(list(indices), self._axes.data_place, self._axes.rows_of(len(indices)))


NUM_STEPS = 10
"""The number of steps that are checked: a first batch may have no target to leave out."""
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 5e-3}


def matters(strategy: Strategy) -> bool:
    """Say whether a batch is computed in parts at all."""
    return strategy.num_data * strategy.accumulation * strategy.context > 1


@torch.no_grad()
def check(
    loss: Callable[..., object],
    count: Callable[[Any], int],
    outputs: object,
    targets: object,
    together: object,
    strategy: Strategy,
) -> None:
    """Compare the loss of some rows with the losses of their two halves."""
    tensors = [one for given in (targets, outputs) for one in tensors_of(given)]
    rows = tensors[0].size(0) if tensors and tensors[0].dim() else 0
    is_known = isinstance(outputs, (torch.Tensor, tuple, list)) or type(outputs) is dict
    if not is_known or rows < 2 or not all(one.dim() and one.size(0) == rows for one in tensors):
        return
    total, counted = 0.0, 0
    for first, end in ((0, rows // 2), (rows // 2, rows)):
        part_outputs, wanted = (each(lambda one: one.detach()[first:end], two) for two in (outputs, targets))  # noqa: B023
        number = count(wanted)
        if number:
            total += number * float(whole(loss(part_outputs, wanted)))
            counted += number
    expected = float(whole(together)) * counted
    if counted and abs(total - expected) > TOLERANCE[strategy.precision] * max(abs(total), abs(expected), 1e-6):
        raise StrategyError(
            f"the loss of {rows} rows is {expected / counted:.6g}, but their two halves together give "
            f"{total / counted:.6g}: the loss is no mean over {counted} targets, so no rank can compute its part",
            hint="tell over how many targets the loss is a mean: run.parallelize(…, count=lambda targets: (targets "
            "!= 0).sum()); a loss that compares samples with each other needs the whole batch on one rank",
        )
