"""Record a training under a strategy for a proof: whole tensors, by the names of the model as it was written."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ...pytorch import distributed
from ..recording.record import Record
from ..wire import messages
from ..wire.gather import is_dtensor
from . import states
from .axes import Axes
from .optimizers import Optimizing


def begin(
    record: Record, parameters: Mapping[str, nn.Parameter], optimizing: Optimizing, axes: Axes, trained: Sequence[str]
) -> None:
    record.gather_from(Gathered(parameters, optimizing, axes, trained), optimizing.optimizer)
    if axes.strategy.precision != "fp32":
        eps = torch.finfo(torch.bfloat16 if axes.strategy.precision == "bf16" else torch.float16).eps
        # fully_shard lets norms compute in 16 bits too, and a square, as AdamW keeps, has twice the error
        record.facts["eps"] = 2 * eps if axes.strategy.is_fully_sharded else eps


def noted(record: Record, wait: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Wait for the loss of a step before its optimizer steps, and record the loss."""
    loss = wait()
    record.set_loss(float(loss))
    return lambda: loss


class Gathered:
    """All weights of a model, in the form that a record takes from one device; all ranks must call each method."""

    parameter = None
    is_sharded = True

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], optimizing: Optimizing, axes: Axes, trained: Sequence[str]
    ) -> None:
        self.names = list(trained)
        self._parameters = {name: parameters[name] for name in trained if name in parameters}
        self._optimizing = optimizing
        self._axes = axes
        self._gradients: dict[str, torch.Tensor] = {}

    @property
    def num_cut(self) -> int:
        """The number of weights that are not whole on every rank."""
        here = [getattr(one, "placements", ()) for one in self._parameters.values()]
        num_whole = sum(all(placement.is_replicate() for placement in placements) for placements in here)
        return len(self.names) - (num_whole if self._axes.sizes["pipeline"] == 1 else 0)

    def values(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._whole(self._parameters)

    def norms(self) -> Iterator[tuple[str, float]]:
        gradients = {name: one.grad for name, one in self._parameters.items() if one.grad is not None}
        self._gradients = dict(self._whole(gradients))
        for name, gradient in self._gradients.items():
            yield name, float(torch.linalg.vector_norm(gradient, dtype=torch.float64))

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._gradients.items()

    def states(self, _optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
        names = self._optimizing.names(self.names)
        state_by_number: dict[int, dict[str, object]] = self._optimizing.state(self.names).get("state", {})
        for number, values in state_by_number.items():
            for key, value in values.items():
                yield f"{key} of {names[number]}", torch.as_tensor(value)

    def rates(self) -> list[float]:
        return self._optimizing.rates()

    def _whole(self, tensors: Mapping[str, object]) -> Iterator[tuple[str, torch.Tensor]]:
        yield from states.gather(tensors, self._axes, self.names).items()


WHOLE, NOTHING = "whole", "–"


def table(local: Mapping[str, Any], axes: Axes, order: Sequence[str]) -> str:
    """Return a row for each weight, and a column for each rank, with the rows and columns that it holds."""
    mine = {name: (tuple(value.shape), _place(value)) for name, value in local.items()}
    every = messages.gather(mine) if axes.world.size > 1 else [mine]
    shapes: dict[str, tuple[int, ...]] = {name: entry[0] for part in every for name, entry in part.items()}
    known = {name: place for place, name in enumerate(order)}
    names = sorted(shapes, key=lambda name: (known.get(name, len(known)), name))
    rows = [["weight", "shape", *(f"rank {rank}" for rank in range(len(every)))]]
    for name in names:
        cells = [part[name][1] if name in part else NOTHING for part in every]
        rows.append([name, " × ".join(map(str, shapes[name])) or "1", *cells])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]
    return "\n".join(lines)


def _place(tensor: Any) -> str:
    if not is_dtensor(tensor):
        return WHOLE
    shape, offset = distributed.part_of(tensor.shape, tensor.device_mesh, tensor.placements)
    if tuple(shape) == tuple(tensor.shape):
        return WHOLE
    if 0 in shape:
        return NOTHING
    slices = [
        ":" if size == all_of_it else f"{first}:{first + size}"
        for size, first, all_of_it in zip(shape, offset, tensor.shape, strict=False)
    ]
    return "[{}]".format(", ".join(slices))
