"""A stage is the model's own forward() of which other stages' blocks are left out.

Every stage gets the model's inputs, so that masks and tables are made where they are needed; what the blocks before
would have computed is what the stage before sends, and what comes after is not reached. So the modules of a stage are
those of the model, and every other axis can cut them.
"""

import copy
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import torch
from torch import nn

from . import blocks
from .strategy import StrategyError

PREFIX = blocks.STAGE


class Stage(nn.Module):
    """One stage of a pipeline."""

    def __init__(self, model: nn.Module, entry: "List[Any]", *, is_first: bool) -> None:
        super().__init__()
        self.echelon_stage = model
        self._entry = entry
        self._is_first = is_first

    def forward(self, *received: Any, **given: Any) -> Any:
        """Compute this stage's blocks from what was received, and from the model's inputs."""
        if not self._is_first:
            self._entry[:] = received
            received = tuple(given[name] for name in sorted(given))
        try:
            return self.echelon_stage(*received)
        except _Done as done:
            return done.output
        finally:
            self._entry.clear()


class _Done(Exception):
    """The last block of a stage has computed."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


class _Before(nn.Module):
    """A block of a stage before: the last of them gives what was received."""

    def __init__(self, entry: "List[Any]", *, is_tuple: bool, is_last: bool) -> None:
        super().__init__()
        self._entry, self._is_tuple, self._is_last = entry, is_tuple, is_last

    def forward(self, given: Any, *_args: Any, **_kwargs: Any) -> Any:
        output = self._entry[0] if self._is_last else given
        return (output,) if self._is_tuple else output


class _After(nn.Module):
    """The first block of the next stage."""

    def forward(self, given: Any, *_args: Any, **_kwargs: Any) -> Any:
        raise _Done(given)


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

    def __init__(self, model: nn.Module, found: Mapping[str, nn.Module], sample: Sequence[torch.Tensor]) -> None:
        self.calls: List[str] = []
        self.outputs: Dict[str, Any] = {}
        inside = tuple(name + "." for name in found)
        watched = {
            name: one
            for name, one in model.named_modules()
            if name in found or (_has_own(one) and not name.startswith(inside))
        }
        self.outside = [name for name in watched if name not in found]
        hooks = [one.register_forward_hook(self._note(name)) for name, one in watched.items()]
        try:
            with torch.no_grad(), torch.random.fork_rng(enabled=not sample[0].is_meta):
                model(*sample)
        finally:
            for hook in hooks:
                hook.remove()

    def _note(self, name: str) -> Any:
        def note(_module: nn.Module, _args: Any, output: Any) -> None:
            self.calls.append(name)
            self.outputs[name] = output

        return note


def _has_own(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def split(
    model: nn.Module,
    found: Mapping[str, nn.Module],
    begin: Sequence[str],
    sample: Sequence[torch.Tensor],
    mine: Sequence[int],
) -> Dict[int, nn.Module]:
    """Return stages by number; the model is used up."""
    device = next(model.parameters()).device
    seen = Seen(model, found, [one.to(device) for one in sample])
    before, after = _sides(model, seen, list(found))
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
    entry: List[Any] = []
    for place, name in enumerate(order):
        is_tuple = isinstance(seen.outputs[name], tuple)
        if place < first:
            blocks.replace(model, name, _Before(entry, is_tuple=is_tuple, is_last=place == first - 1))
        elif place >= end:
            blocks.replace(model, name, _After())
    for name in [*(before if first > 0 else ()), *(after if end < len(order) else ())]:
        output = seen.outputs[name]
        output = output[0] if isinstance(output, tuple) else output
        blocks.replace(model, name, _Elsewhere(tuple(output.shape), output.dtype))
    return Stage(model, entry, is_first=first == 0)


def _sides(model: nn.Module, seen: Seen, order: List[str]) -> Tuple[List[str], List[str]]:
    """Return which modules with weights are called before the blocks, and which after; refuse what is neither."""
    kind = type(model).__name__
    if [name for name in seen.calls if name in order] != order:
        raise StrategyError(
            "%s does not call its blocks once each and in their order, so that stages have no order" % kind,
            hint="name blocks that it does: run.parallelize(model, strategy, blocks=[…])",
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
