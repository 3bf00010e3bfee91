"""A stage is the model's own forward() of which other stages' blocks are left out.

Every stage gets the model's inputs, so that masks and tables are made where they are needed; what the blocks before
would have computed is what the stage before sends, and what comes after is not reached. So the modules of a stage are
those of the model, and every other axis can cut them.
"""

import copy
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import torch
from torch import nn

from . import batches, blocks
from .strategy import StrategyError

PREFIX = blocks.STAGE


class Stage(nn.Module):
    """One stage of a pipeline."""

    def __init__(self, model: nn.Module, ends: "_Ends", *, is_first: bool) -> None:
        super().__init__()
        self.echelon_stage = model
        self._ends = ends
        self._is_first = is_first
        self.form: Any = None
        """A batch of inputs as the model gets them; a stage gets their tensors."""

    def watch(self) -> None:
        """Note what the last block gives; to be called when the blocks are as they will stay."""
        if self._ends.last:
            self.get_submodule(PREFIX + self._ends.last).register_forward_hook(self._note)

    def _note(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self._ends.left[:] = [output[0] if isinstance(output, tuple) else output]

    def forward(self, *received: Any, **given: Any) -> Any:
        """Compute this stage's blocks from what was received, and from the model's inputs."""
        if not self._is_first:
            self._ends.received[:] = received
            received = tuple(given[name] for name in sorted(given))
        args, named = batches.arguments_of(batches.with_tensors(self.form, received))
        try:
            return self.echelon_stage(*args, **named)
        except _Done:
            return self._ends.left[0]
        finally:
            self._ends.received.clear()
            self._ends.left.clear()


class _Ends:
    """Where a stage begins and ends: what its last block gave goes to the next stage as it is, and what the model does
    between two blocks is done there."""

    def __init__(self, last: str) -> None:
        self.last = last
        """The name of the last block; of the last stage none."""
        self.received: List[Any] = []
        self.left: List[Any] = []


class _Done(Exception):
    """The last block of a stage has computed."""


class _Before(nn.Module):
    """A block of a stage before: the last of them gives what was received."""

    def __init__(self, ends: _Ends, *, is_tuple: bool, is_last: bool) -> None:
        super().__init__()
        self._ends, self._is_tuple, self._is_last = ends, is_tuple, is_last

    def forward(self, given: Any, *_args: Any, **_kwargs: Any) -> Any:
        output = self._ends.received[0] if self._is_last else given
        return (output,) if self._is_tuple else output


class _After(nn.Module):
    """The first block of the next stage."""

    def forward(self, *_args: Any, **_kwargs: Any) -> Any:
        raise _Done


class _Elsewhere(nn.Module):
    """A module outside of the blocks that is on another stage; its numbers are not used, its shape may be."""

    def __init__(self, shape: Tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self._shape, self._dtype = shape, dtype

    def forward(self, given: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        shape = (given.size(0), *self._shape[1:]) if given.dim() > 1 else self._shape
        return torch.zeros((), dtype=self._dtype, device=given.device).expand(shape)


class Seen:
    """What was seen of one forward(): which modules were called, in which order, and what they gave."""

    def __init__(self, model: nn.Module, found: Mapping[str, nn.Module], args: Any, named: Any) -> None:
        self.calls: List[str] = []
        self.outputs: Dict[str, Any] = {}
        self.changed = ""
        """A block whose output was changed in place before the next one got it."""
        self._left: Any = None
        inside = tuple(name + "." for name in found)
        watched = {
            name: one
            for name, one in model.named_modules()
            if name in found or (_has_own(one) and not name.startswith(inside))
        }
        self.outside = [name for name in watched if name not in found]
        hooks = [one.register_forward_hook(self._note(name)) for name, one in watched.items()]
        hooks += [one.register_forward_pre_hook(self._compare) for one in found.values()]
        hooks += [one.register_forward_hook(self._leave(name)) for name, one in found.items()]
        is_meta = any(one.is_meta for one in batches.tensors_of((args, named)))
        try:
            with torch.no_grad(), torch.random.fork_rng(enabled=not is_meta):
                self.output = model(*args, **named)
        finally:
            for hook in hooks:
                hook.remove()

    def _note(self, name: str) -> Any:
        def note(_module: nn.Module, _args: Any, output: Any) -> None:
            self.calls.append(name)
            self.outputs[name] = output

        return note

    def _leave(self, name: str) -> Any:
        def leave(_module: nn.Module, _args: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            self._left = (name, tensor, tensor._version)

        return leave

    def _compare(self, *_: Any) -> None:
        if self._left is not None and self._left[1]._version != self._left[2]:
            self.changed = self._left[0]


def _has_own(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def split(
    model: nn.Module,
    found: Mapping[str, nn.Module],
    begin: Sequence[str],
    sample: Any,
    mine: Sequence[int],
) -> Dict[int, nn.Module]:
    """Return stages by number; the model is used up."""
    device = next(model.parameters()).device
    seen = Seen(model, found, *batches.arguments_of(batches.each(lambda one: one.to(device), sample)))
    before, after = sides(model, seen, list(found))
    order = list(found)
    bounds = [0, *(order.index(name) for name in begin), len(order)]
    whole = {number: model if number == mine[0] else _like(model) for number in mine}
    stages: Dict[int, nn.Module] = {}
    for number in mine:
        first, end = bounds[number], bounds[number + 1]
        stages[number] = _stage(whole[number], seen, order, (first, end), before, after)
    return stages


def _like(model: nn.Module) -> nn.Module:
    """Return a model with the same weights, whose modules can be exchanged."""
    same: Dict[int, Any] = {id(one): one for one in [*model.parameters(), *model.buffers()]}
    return copy.deepcopy(model, same)


def _stage(
    model: nn.Module, seen: Seen, order: List[str], bounds: Tuple[int, int], before: List[str], after: List[str]
) -> Stage:
    first, end = bounds
    ends = _Ends(order[end - 1] if end < len(order) else "")
    for place, name in enumerate(order):
        is_tuple = isinstance(seen.outputs[name], tuple)
        if place < first:
            blocks.replace(model, name, _Before(ends, is_tuple=is_tuple, is_last=place == first - 1))
        elif place >= end:
            blocks.replace(model, name, _After())
    for name in [*(before if first > 0 else ()), *(after if end < len(order) else ())]:
        output = seen.outputs[name]
        output = output[0] if isinstance(output, tuple) else output
        blocks.replace(model, name, _Elsewhere(tuple(output.shape), output.dtype))
    return Stage(model, ends, is_first=first == 0)


def sides(model: nn.Module, seen: Seen, order: List[str]) -> Tuple[List[str], List[str]]:
    """Return which modules with weights are called before the blocks, and which after; refuse what is neither."""
    kind = type(model).__name__
    if [name for name in seen.calls if name in order] != order:
        raise StrategyError(
            "%s does not call its blocks once each and in their order, so that stages have no order" % kind,
            hint="name blocks that it does: run.parallelize(model, strategy, blocks=[…])",
        )
    if seen.changed:
        raise StrategyError(
            "%s changes what its block %s gave, in place, and the next stage is to get it as it was"
            % (kind, seen.changed),
            hint="x = x + y in place of x += y, between the blocks",
        )
    first, last = seen.calls.index(order[0]), seen.calls.index(order[-1])
    before, after = [], []
    for name in seen.outside:
        places = [place for place, called in enumerate(seen.calls) if called == name]
        sides = {-1 if place < first else 1 if place > last else 0 for place in places}
        if sides == {-1}:
            before.append(name)
        elif sides == {1}:
            after.append(name)
        else:
            raise StrategyError(
                "%s has weights in %s, which is %s: no stage would be the one that has it"
                % (kind, name or "itself", "not called as a module" if not sides else "called among the blocks"),
                hint="a module of its own for them, that is called before the first block or after the last",
            )
    return before, after
