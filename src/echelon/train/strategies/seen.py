"""Record one forward pass of a model: the order of its blocks, and the modules with weights outside of the blocks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

from ...pytorch import internals
from ..function_types import Args, Function, Kwargs
from ..global_tensors.tensors import map_tensors, tensors_of
from ..rng import generators
from .strategy import StrategyError

EVERYWHERE = (
    "use a script for one device with echelon run --scale pipeline, which gives every stage the module; or pipeline=1"
)


class ForwardRecord:
    """The record of one forward(): the called modules in their order, and their outputs."""

    def __init__(self, model: nn.Module, blocks: Mapping[str, nn.Module], args: Args, named: Kwargs) -> None:
        self.order = list(blocks)
        self.calls: list[str] = []
        self.outputs: dict[str, Any] = {}
        self.leading: dict[str, int] = {}
        """The number of leading dims that the output of a module shares with its input."""
        self.changed = ""
        """A block whose output was changed in place before the next block got it."""
        self._left: Any = None
        torch.backends.mha.set_fastpath_enabled(False)  # on the fast path a layer may read the weights of other layers
        inside = tuple(name + "." for name in blocks)
        watched = {
            name: one
            for name, one in model.named_modules()
            if name in blocks or (any(True for _ in one.parameters(recurse=False)) and not name.startswith(inside))
        }
        self.outside = [name for name in watched if name not in blocks]
        self._weights = {
            f"{name}.{leaf}" if name else leaf: one
            for name in self.outside
            for leaf, one in watched[name].named_parameters(recurse=False)
        }
        self.uses: dict[str, set[int]] = {name: set() for name in self._weights}
        """Where each weight outside of the blocks is used: before them (-1), among them (0) or after them (1)."""
        self._names = {_memory_of(one): name for name, one in self._weights.items()}
        self._last, self._side = self.order[-1], -1
        hooks = [one.register_forward_hook(self._note(name)) for name, one in watched.items()]
        hooks += [one.register_forward_pre_hook(self._compare) for one in blocks.values()]
        hooks += [one.register_forward_hook(self._leave(name)) for name, one in blocks.items()]
        try:
            with _Operations(self._use):
                self.output = _computed(model, args, named)
        finally:
            for hook in hooks:
                hook.remove()
        self._left = None

    def bounds_of(self, begin: Iterable[str]) -> list[int]:
        """Return where stages begin and end, by the names of the first blocks of all but the first stage."""
        return [0, *(self.order.index(name) for name in begin), len(self.order)]

    def _note(self, name: str) -> Function:
        def note(_module: nn.Module, args: object, output: object) -> None:
            self.calls.append(name)
            self.outputs[name] = output
            source, made = next(iter(tensors_of(args)), None), next(iter(tensors_of(output)), None)
            if source is not None and made is not None:
                pairs = zip(source.shape, made.shape, strict=False)
                self.leading[name] = next((at for at, (one, other) in enumerate(pairs) if one != other), source.dim())

        return note

    def _use(self, arguments: object) -> None:
        for tensor in tensors_of(arguments):
            name = self._names.get(_memory_of(tensor)) if tensor.layout is torch.strided else None
            if name is not None:
                self.uses[name].add(self._side)

    def _leave(self, name: str) -> Function:
        def leave(_module: nn.Module, _args: object, output: Any) -> None:
            tensor = output[0] if isinstance(output, tuple) else output
            self._left = (name, tensor, tensor._version)
            self._side = 1 if name == self._last else 0

        return leave

    def _compare(self, *_: object) -> None:
        self._side = 0
        if self._left is not None and self._left[1]._version != self._left[2]:
            self.changed = self._left[0]


class _Operations(internals.DispatchMode):  # type: ignore[misc]
    def __init__(self, see: Any) -> None:
        super().__init__()
        self._see = see

    def __torch_dispatch__(self, func: Function, types: object, args: Args = (), kwargs: Any = None) -> Any:
        self._see((args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _memory_of(tensor: torch.Tensor) -> int:
    return internals.storage_key(tensor)


def _computed(
    model: nn.Module, args: Args, named: Kwargs, weights: Mapping[str, torch.Tensor] = MappingProxyType({})
) -> object:
    """Return the output of a model, with some weights replaced, and restore the random number generators."""
    is_meta = any(one.is_meta for one in tensors_of((args, named)))
    with torch.no_grad(), nullcontext() if is_meta else generators.kept():
        return torch.func.functional_call(model, dict(weights), args, named) if weights else model(*args, **named)


class Sides(NamedTuple):
    before: list[str]
    """The modules that are called before the blocks."""
    after: list[str]
    loose: list[str]
    """The modules whose weights are used without a separate call of the module, such as the model itself."""


def sides(model: nn.Module, seen: ForwardRecord) -> Sides:
    """Return which modules with weights are called before the blocks, and which after; refuse modules between them."""
    kind, order = type(model).__name__, seen.order
    if [name for name in seen.calls if name in order] != order:
        raise StrategyError(
            f"{kind} does not call its blocks once each and in order, so the stages have no order",
            hint="name blocks that it calls once each and in order: run.parallelize(model, strategy, blocks=[…])",
        )
    if seen.changed:
        raise StrategyError(
            f"{kind} changes the output of its block {seen.changed} in place, but the next stage needs the "
            "unchanged output",
            hint="write x = x + y in place of x += y between the blocks",
        )
    first, last = seen.calls.index(order[0]), seen.calls.index(order[-1])
    modules = Sides([], [], [])
    for name in seen.outside:
        places = [place for place, called in enumerate(seen.calls) if called == name]
        uses = {use for weight, where in seen.uses.items() if weight.rpartition(".")[0] == name for use in where}
        if not places or any(not name or one.startswith(name + ".") for one in order):
            modules.loose.append(name)
        elif all(place < first for place in places):
            (modules.before if uses <= {-1} else modules.loose).append(name)
        elif all(place > last for place in places):
            (modules.after if uses <= {1} else modules.loose).append(name)
        else:
            raise StrategyError(
                f"{kind} has weights in {name}, which it calls between its blocks; no single stage can "
                "own these weights",
                hint="move these weights into a module that the model calls before the first block or after the last",
            )
    return modules


def users(model: nn.Module, seen: ForwardRecord, loose: Sequence[str]) -> dict[str, int]:
    """Return for each loose weight whether it is used before the blocks (-1) or after them (1); refuse other uses."""
    side_by_weight = {}
    for name, uses in seen.uses.items():
        if name.rpartition(".")[0] not in loose:
            continue
        if len(uses) > 1 or 0 in uses:
            raise StrategyError(
                "{} uses its {} {}; no single stage can own it".format(
                    type(model).__name__,
                    name,
                    "between the blocks" if 0 in uses else "both before and after the blocks",
                ),
                hint=EVERYWHERE,
            )
        side_by_weight[name] = min(uses, default=-1)
    return side_by_weight


def needed_later(
    model: nn.Module,
    seen: ForwardRecord,
    before: Sequence[str],
    args: Args,
    named: Kwargs,
    weights: Sequence[str] = (),
) -> list[str]:
    """Return the modules and weights before the blocks that are also used after the first block.

    An example is a time embedding that all blocks get. The modules and weights are replaced by NaN, and the first block
    returns its recorded output. A NaN in the output of the model then shows a later use.
    """
    if any(one.is_meta for one in tensors_of(args, named)):
        return []
    first = seen.order[0]
    expected, block = tensors_of(seen.output), model.get_submodule(first)
    own = dict(model.named_parameters(remove_duplicate=False))

    def is_needed(names: Sequence[str]) -> bool:
        modules = [model.get_submodule(name) for name in names if name not in own]
        hooks = [
            one.register_forward_hook(lambda _module, _args, output: map_tensors(output, _none_like)) for one in modules
        ]
        forward = block.__dict__.get("forward")
        block.__dict__["forward"] = lambda *_args, **_named: seen.outputs[first]
        try:
            output = _computed(model, args, named, {name: _none_like(own[name]) for name in names if name in own})
        finally:
            for hook in hooks:
                hook.remove()
            del block.__dict__["forward"]
            block.__dict__.update({} if forward is None else {"forward": forward})
        pairs = zip(tensors_of(output), expected, strict=False)
        return any(bool((one.isnan() & ~other.isnan()).any()) for one, other in pairs)

    names = [*before, *weights]
    return [name for name in names if is_needed([name])] if names and is_needed(names) else []


def _none_like(tensor: torch.Tensor) -> torch.Tensor:
    return no_numbers(tensor.dtype, tensor.device).expand(tensor.shape)


def no_numbers(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a scalar in place of a number of another stage: NaN, so that every result that uses it is NaN."""
    return torch.full((), math.nan if dtype.is_floating_point else 0, dtype=dtype, device=device)
