"""A stage runs the model's own forward() without the blocks of other stages.

Every stage gets the model's inputs, so that masks and tables are made where they are needed. The stage before sends the
output of earlier blocks, and forward() stops before later blocks. So the modules of a stage are those of the model, and
every other axis can cut them.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ...pytorch import internals
from . import batches, blocks
from .seen import EVERYWHERE, ForwardRecord, Sides, needed_later, no_numbers, sides, users
from .strategy import StrategyError

PREFIX = blocks.STAGE


class StrategyStage(nn.Module):
    def __init__(self, model: nn.Module, ends: "_Ends", *, is_first: bool) -> None:
        super().__init__()
        self.echelon_stage = model
        self._ends = ends
        self._is_first = is_first
        self.form: object = None
        """A batch of inputs as the model gets them; a stage gets their tensors."""

    def watch(self) -> None:
        """Keep the output of the last block; call this when the blocks are final."""
        if self._ends.last:
            self.get_submodule(PREFIX + self._ends.last).register_forward_hook(self._note)

    def _note(self, _module: nn.Module, _args: object, output: object) -> None:
        self._ends.left[:] = [output[0] if isinstance(output, tuple) else output]

    def forward(self, *received: Any, **inputs: object) -> object:
        """Compute this stage's blocks from the received activation and the model's inputs."""
        if not self._is_first:
            self._ends.received[:] = received
            received = tuple(inputs[name] for name in sorted(inputs))
        args, named = batches.arguments_of(batches.with_tensors(self.form, received))
        try:
            return self.echelon_stage(*args, **named)
        except _Done:
            return self._ends.left[0]
        finally:
            self._ends.received.clear()
            self._ends.left.clear()


class _Ends:
    """The ends of a stage: the received activation, and the output of its last block.

    The output goes to the next stage unchanged. The next stage computes what the model does between the two blocks.
    """

    def __init__(self, last: str) -> None:
        self.last = last
        """The name of the last block; empty for the last stage."""
        self.received: list[object] = []
        self.left: list[object] = []


class _Done(Exception):
    """The last block of a stage has computed."""


class _StandIn(nn.Module):
    """A placeholder for a module of another stage: it has the module's attributes, and no weights."""

    def __init__(self, original: nn.Module, device: torch.device) -> None:
        super().__init__()
        for module in original.modules():
            for leaf in list(internals.weights(module)):
                _leave_out(module, leaf, device)
        self.__dict__["_original"] = original  # not as a module of the stage

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "_original" not in self.__dict__:
                raise
            return getattr(self.__dict__["_original"], name)


class _Before(_StandIn):
    """A block of an earlier stage: the last such block returns the received activation."""

    def __init__(
        self, original: nn.Module, device: torch.device, ends: _Ends, *, is_tuple: bool, is_last: bool
    ) -> None:
        super().__init__(original, device)
        self._ends, self._is_tuple, self._is_last = ends, is_tuple, is_last

    def forward(self, block_input: object, *_args: object, **_kwargs: object) -> object:
        output = self._ends.received[0] if self._is_last else block_input
        return (output,) if self._is_tuple else output


class _After(_StandIn):
    def forward(self, *_args: object, **_kwargs: object) -> object:
        raise _Done


class _Elsewhere(_StandIn):
    """A module outside of the blocks that is on another stage; its numbers are not used, its shape may be."""

    def __init__(self, original: nn.Module, device: torch.device, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__(original, device)
        self._shape, self._dtype = shape, dtype

    def forward(self, block_input: torch.Tensor, *_args: object, **_kwargs: object) -> torch.Tensor:
        shape = (block_input.size(0), *self._shape[1:]) if block_input.dim() > 1 else self._shape
        return no_numbers(self._dtype, block_input.device).expand(shape)


def _leave_out(module: nn.Module, leaf: str, device: torch.device) -> None:
    """Remove a weight that another stage uses; a placeholder keeps its shape."""
    weight: torch.Tensor = internals.weights(module).pop(leaf)
    module.__dict__[leaf] = weight if weight is None else no_numbers(weight.dtype, device).expand(weight.shape)


def split(
    model: nn.Module,
    model_blocks: Mapping[str, nn.Module],
    begin: Sequence[str],
    sample: object,
    mine: Sequence[int],
    run_device: torch.device,
) -> dict[int, nn.Module]:
    """Return stages by number; the model must not be used afterwards."""
    device = next(model.parameters()).device
    args, named = batches.arguments_of(batches.each(lambda one: one.to(device), sample))
    seen = ForwardRecord(model, model_blocks, args, named)
    order = list(model_blocks)
    outside = sides(model, seen, order)
    sides_of_weights = users(model, seen, outside.loose)
    early = [name for name, side in sides_of_weights.items() if side < 0]
    needed = needed_later(model, seen, outside.before, order[0], args, named, early)
    if needed:
        raise StrategyError(
            "the model also uses {} after the first block of {}, but the stages there do not have it".format(
                ", ".join(needed), type(model).__name__
            ),
            hint=EVERYWHERE,
        )
    bounds = [0, *(order.index(name) for name in begin), len(order)]
    same: dict[int, Any] = {id(one): one for one in [*model.parameters(), *model.buffers()]}
    whole = {number: model if number == mine[0] else copy.deepcopy(model, dict(same)) for number in mine}
    stages: dict[int, nn.Module] = {}
    for number in mine:
        first, end = bounds[number], bounds[number + 1]
        for name, side in sides_of_weights.items():
            if first if side < 0 else end < len(order):
                owner, _, leaf = name.rpartition(".")
                _leave_out(whole[number].get_submodule(owner), leaf, run_device)
        stages[number] = _stage(whole[number], seen, order, (first, end), outside, run_device)
    return stages


def _stage(
    model: nn.Module,
    seen: ForwardRecord,
    order: list[str],
    bounds: tuple[int, int],
    outside: Sides,
    device: torch.device,
) -> StrategyStage:
    first, end = bounds
    ends = _Ends(order[end - 1] if end < len(order) else "")
    for place, name in enumerate(order):
        is_tuple, block = isinstance(seen.outputs[name], tuple), model.get_submodule(name)
        if place < first:
            stand_in = _Before(block, device, ends, is_tuple=is_tuple, is_last=place == first - 1)
            blocks.replace(model, name, stand_in)
        elif place >= end:
            blocks.replace(model, name, _After(block, device))
    for name in [*(outside.before if first > 0 else ()), *(outside.after if end < len(order) else ())]:
        output = seen.outputs[name]
        output = output[0] if isinstance(output, tuple) else output
        elsewhere = _Elsewhere(model.get_submodule(name), device, tuple(output.shape), output.dtype)
        blocks.replace(model, name, elsewhere)
    return StrategyStage(model, ends, is_first=first == 0)
