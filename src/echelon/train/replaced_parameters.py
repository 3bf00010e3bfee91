"""Weights that a script has kept from before they were spread or cut: which they are now."""

import weakref
from typing import Any, Dict, Iterable, Tuple

import torch
from torch import nn

from .global_tensors.tensors import map_tensors


class FormerWeight(nn.Parameter):
    """A weight that a script has listed before it was spread: who computes with it computes with what it is now."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function with the present weight."""
        return func(*map_tensors(args, _present), **map_tensors(kwargs or {}, _present))


def _present(tensor: torch.Tensor) -> Any:
    return tensor.__dict__["present"] if type(tensor) is FormerWeight else tensor


class ReplacedParameters:
    """Remembers which weight has taken the place of which, for as long as the old one is kept by somebody."""

    def __init__(self) -> None:
        self._known: "Dict[int, Tuple[weakref.ref[nn.Parameter], nn.Parameter]]" = {}

    def note(self, pairs: Iterable[Tuple[nn.Parameter, nn.Parameter]]) -> None:
        """Take note of old weights, each with its new one."""
        self._known.update({id(old): (weakref.ref(old), new) for old, new in pairs})

    def forward(self) -> None:
        """Let the old weights stand for the new ones."""
        for old, new in self._known.values():
            parameter = old()
            if parameter is not None and type(parameter) is nn.Parameter:
                parameter.__dict__["present"] = new
                parameter.__class__ = FormerWeight

    def present(self, parameter: Any) -> Any:
        """Return a weight as it is now."""
        old, new = self._known.get(id(parameter), (None, parameter))
        return new if old is not None and old() is parameter else parameter
