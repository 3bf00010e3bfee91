"""Split a model into stages: each runs the model's own forward() without the blocks of other stages.

Every stage gets the model's inputs, so that masks and tables are made where they are needed. The stage before sends the
output of earlier blocks, and forward() stops before later blocks. So the modules of a stage are those of the model, and
every other axis can cut them.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from ...pytorch import internals
from ..function_types import Args, Function, Kwargs
from ..global_tensors.tensors import tensors_of
from . import batches, blocks
from .axes import Axes
from .seen import EVERYWHERE, ForwardRecord, Sides, needed_later, no_numbers, sides, users
from .stages import places
from .strategy import StrategyError


class StageForward:
    """A model's forward() on one stage: what it computes in place of the modules of other stages.

    The output of the last block goes to the next stage unchanged. The next stage computes what the model does between
    the two blocks.
    """

    def __init__(self, seen: ForwardRecord, outside: Sides, bounds: tuple[int, int], device: torch.device) -> None:
        first, end = bounds
        self.is_first, self.is_last = first == 0, end == len(seen.order)
        self.last = seen.order[end - 1]
        """The name of the last block of the stage."""
        self.others: dict[str, Function] = {}
        """The functions that take the place of forward() in modules of other stages, by the names of the modules."""
        self._received: object = None
        self._left: object = None
        for place, name in enumerate(seen.order[:first]):
            is_tuple = isinstance(seen.outputs[name], tuple)
            self.others[name] = partial(self._skip, is_tuple, place == first - 1)
        self.others.update(dict.fromkeys(seen.order[end:], _stop))
        for name in [*(() if self.is_first else outside.before), *(() if self.is_last else outside.after)]:
            output = next(iter(tensors_of(seen.outputs[name])))
            like = no_numbers(output.dtype, device)
            self.others[name] = partial(_stand_in, like, tuple(output.shape), seen.leading.get(name, 0))

    def compute(self, forward: Callable[..., object], received: object, args: Args, kwargs: Kwargs) -> Any:
        """Return the output of this stage's last block; the last stage returns the output of the model."""
        self._received = received
        try:
            return forward(*args, **kwargs)
        except _Done:
            return self._left
        finally:
            self._received = self._left = None

    def keep(self, output: object) -> None:
        """Keep the output of the last block."""
        self._left = output[0] if isinstance(output, tuple) else output

    def _skip(self, is_tuple: bool, is_last: bool, *args: object, **kwargs: object) -> Any:
        """Return the input as output; the last block before this stage returns the received activation."""
        output = self._received if is_last else args[0] if args else next(iter(kwargs.values()))
        return (output,) if is_tuple else output


class _Done(Exception):
    """The last block of a stage has computed."""


def _stop(*_args: object, **_kwargs: object) -> Any:
    raise _Done


def _stand_in(
    like: torch.Tensor, shape: tuple[int, ...], leading: int, *args: object, **kwargs: object
) -> torch.Tensor:
    """Return a tensor in place of another stage's output; only its shape may be used."""
    source = next(iter(tensors_of(args, kwargs)), like)
    return like.expand((*source.shape[:leading], *shape[leading:]))


class StrategyStage(nn.Module):
    def __init__(self, model: nn.Module, forward: StageForward) -> None:
        super().__init__()
        self.echelon_stage = model
        self._forward = forward
        self.form: object = None
        """A batch of inputs as the model gets them; a stage gets their tensors."""

    def watch(self) -> None:
        if not self._forward.is_last:
            last = self.get_submodule(blocks.STAGE + self._forward.last)
            last.register_forward_hook(lambda _module, _args, output: self._forward.keep(output))

    def forward(self, *received: Any, **inputs: object) -> object:
        """Compute this stage's blocks from the received activation and the model's inputs."""
        activation = None
        if not self._forward.is_first:
            (activation,), received = received, tuple(inputs[name] for name in sorted(inputs))
        args, named = batches.arguments_of(batches.with_tensors(self.form, received))
        return self._forward.compute(self.echelon_stage, activation, args, named)


class _StandIn(nn.Module):
    """A placeholder for a module of another stage: it has the module's attributes, and no weights."""

    def __init__(self, original: nn.Module, device: torch.device, forward: Function) -> None:
        super().__init__()
        for module in original.modules():
            for leaf in list(internals.weights(module)):
                _leave_out(module, leaf, device)
        self.__dict__.update(_original=original, forward=forward)  # the original is no module of the stage

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "_original" not in self.__dict__:
                raise
            return getattr(self.__dict__["_original"], name)


def _leave_out(module: nn.Module, leaf: str, device: torch.device) -> None:
    """Remove a weight that another stage uses; a placeholder keeps its shape."""
    weight: torch.Tensor = internals.weights(module).pop(leaf)
    module.__dict__[leaf] = weight if weight is None else no_numbers(weight.dtype, device).expand(weight.shape)


def split(
    model: nn.Module, model_blocks: Mapping[str, nn.Module], begin: Sequence[str], sample: object, axes: Axes
) -> dict[int, nn.Module]:
    """Return this rank's stages by number; the model must not be used afterwards."""
    _refuse_split(model, model_blocks, begin, axes)
    device = next(model.parameters()).device
    args, named = batches.arguments_of(batches.each(lambda one: one.to(device), sample))
    seen = ForwardRecord(model, model_blocks, args, named)
    outside = sides(model, seen)
    sides_of_weights = users(model, seen, outside.loose)
    early = [name for name, side in sides_of_weights.items() if side < 0]
    needed = needed_later(model, seen, outside.before, args, named, early)
    if needed:
        raise StrategyError(
            "the model also uses {} after the first block of {}, but the stages there do not have it".format(
                ", ".join(needed), type(model).__name__
            ),
            hint=EVERYWHERE,
        )
    bounds, mine, run_device = seen.bounds_of(begin), places(axes.strategy, axes.place("pipeline")), axes.world.device
    same: dict[int, Any] = {id(one): one for one in [*model.parameters(), *model.buffers()]}
    whole = {number: model if number == mine[0] else copy.deepcopy(model, dict(same)) for number in mine}
    stages: dict[int, nn.Module] = {}
    for number in mine:
        forward = StageForward(seen, outside, (bounds[number], bounds[number + 1]), run_device)
        for name, side in sides_of_weights.items():
            if not (forward.is_first if side < 0 else forward.is_last):
                owner, _, leaf = name.rpartition(".")
                _leave_out(whole[number].get_submodule(owner), leaf, run_device)
        for name, function in forward.others.items():
            original = whole[number].get_submodule(name)
            blocks.replace(whole[number], name, _StandIn(original, run_device, function))
        stages[number] = StrategyStage(whole[number], forward)
    return stages


def _refuse_split(model: nn.Module, model_blocks: Mapping[str, nn.Module], begin: Sequence[str], axes: Axes) -> None:
    for names in blocks.tied(model).values():
        raise StrategyError(
            "{} are one shared tensor, but a pipeline would put it on two stages".format(" and ".join(names)),
            hint="give each name its own weights, or use pipeline=1",
        )
    unknown = [name for name in begin if name not in model_blocks]
    if unknown:
        raise StrategyError(
            "split names {}, but the blocks of {} are {}".format(
                ", ".join(unknown), type(model).__name__, ", ".join(model_blocks)
            ),
            hint=f"split={tuple(list(model_blocks)[1 : axes.strategy.num_stages])!r}",
        )


def own_blocks(part: nn.Module, model_blocks: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    prefix = blocks.STAGE if isinstance(part, StrategyStage) else ""
    own = {prefix + name: part.get_submodule(prefix + name) for name in model_blocks}
    return {name: one for name, one in own.items() if any(True for _ in one.parameters())}


def watch(parts: Iterable[nn.Module]) -> None:
    """Keep the outputs of the last blocks of stages; call this when the blocks are final."""
    for part in parts:
        if isinstance(part, StrategyStage):
            part.watch()
