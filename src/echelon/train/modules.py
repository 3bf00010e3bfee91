"""Find the modules of a script in memory, the places of weights, and weights from before they were sharded."""

import gc
import hashlib
import weakref
from collections.abc import Iterable
from types import FunctionType
from typing import Any

import torch
from torch import nn

from ..pytorch import internals
from .function_types import Function
from .global_tensors.tensors import map_tensors

Place = tuple[Any, ...]
_OF_MODULES = frozenset(vars(nn.Module()))
_HOOKS = [name for name in sorted(_OF_MODULES) if "hooks" in name]
_OURS = f"{__name__.partition('.')[0]}."
_OF_STRATEGIES = ("torch.distributed.", _OURS)
OF_OPTIMIZERS = "parameters_of_optimizers"
"""In the names of the weights of echelon's own module, which has them in the order of the optimizers."""


def living() -> list[nn.Module]:
    """Return every module in memory; `isinstance` could wake a proxy of a dead object."""
    return [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]


def class_in_script(value: object) -> type:
    """Return an object's class as the script knows it: fully_shard() makes an FSDPNet of a Net."""
    kind = type(value)
    bases = kind.__bases__
    is_made = len(bases) == 2 and all(one.__module__.startswith(_OF_STRATEGIES) for one in (kind, bases[0]))
    return bases[1] if is_made else kind


def hooks_of_script(module: nn.Module) -> dict[str, dict[int, Any]]:
    """Return a module's hooks by kind, without those by which a model is split over ranks."""
    kinds = {name: vars(module).get(name) or {} for name in _HOOKS}
    foreign = {number for hooks in kinds.values() for number, hook in hooks.items() if _is_of_strategy(hook)}
    return {name: {n: one for n, one in hooks.items() if n not in foreign} for name, hooks in kinds.items()}


def attributes_of_script(module: nn.Module) -> dict[str, Any]:
    """Return what a script has put at a module besides weights, buffers, modules and hooks."""
    return {
        name: value
        for name, value in vars(module).items()
        if name not in _OF_MODULES and not name.startswith(internals.COMPOSABLE) and not _is_ours(value)
    }


def _is_ours(value: object) -> bool:
    """Say whether an attribute is a function by which echelon surrounds a method of the script."""
    return isinstance(value, FunctionType) and value.__globals__["__name__"].startswith(_OURS)


def _is_of_strategy(hook: Any) -> bool:
    function = getattr(hook, "hook", hook)  # PyTorch wraps those of load_state_dict()
    module = getattr(function, "__module__", None) or type(function).__module__
    return module.startswith(_OF_STRATEGIES)


def weights_of(owner: Any) -> list[nn.Parameter]:
    """Return the weights of a module or of an optimizer."""
    if isinstance(owner, nn.Module):
        return list(owner.parameters())
    return [weight for group in owner.param_groups for weight in group["params"]]


def places() -> dict[int, Place]:
    """Return the place of each weight, by its id: a description of its outermost module, and its number in there.

    The weights of two modules with one description have the same places.
    """
    every = living()
    inner = {id(child) for module in every for child in module.children()}
    place_of: dict[int, Place] = {}
    for module in (one for one in every if id(one) not in inner):
        named = dict(module.named_parameters())
        if any(OF_OPTIMIZERS in name for name in named):
            continue
        kind = class_in_script(module).__qualname__
        described = (kind, tuple((tuple(one.shape), str(one.dtype)) for one in named.values()))
        for number, weight in enumerate(named.values()):
            place = (*described, number)
            place_of[id(weight)] = min(place, place_of.get(id(weight), place))
    return place_of


def marks(weights: Iterable[nn.Parameter]) -> list[str]:
    known = places()
    return [hashlib.sha256(repr(known.get(id(one), ())).encode()).hexdigest() for one in weights]


class FormerWeight(nn.Parameter):
    """A weight that a script has listed before it was sharded; functions compute with the present weight instead."""

    @classmethod
    def __torch_function__(cls, func: Function, types: object, args: object = (), kwargs: object = None) -> Any:
        return func(*map_tensors(args, _present), **map_tensors(kwargs or {}, _present))


def _present(tensor: torch.Tensor) -> Any:
    return tensor.__dict__["present"] if type(tensor) is FormerWeight else tensor


class ReplacedParameters:
    """Remembers the new weight for each old weight, as long as an old weight is referenced."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[nn.Parameter], nn.Parameter]] = {}

    def note(self, pairs: Iterable[tuple[nn.Parameter, nn.Parameter]]) -> None:
        self._known.update({id(old): (weakref.ref(old), new) for old, new in pairs})

    def forward(self) -> None:
        for old, new in self._known.values():
            parameter = old()
            if parameter is not None and type(parameter) is nn.Parameter:
                parameter.__dict__["present"] = new
                parameter.__class__ = FormerWeight

    def current_parameter(self, parameter: object) -> Any:
        old, new = self._known.get(id(parameter), (None, parameter))
        return new if old is not None and old() is parameter else parameter
