"""Find models that branch by values: which of their parameters are used then depends on the samples."""

import weakref
from contextlib import nullcontext
from typing import Any, ContextManager

import torch
from torch import nn

from ...pytorch import internals

_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class Branches:
    """Whether a model has read a value, or made a tensor whose shape depends on values, in its first call."""

    def __init__(self) -> None:
        self.are_there = False
        self._seen: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()

    def watched(self, module: nn.Module, *, is_compiled: bool) -> ContextManager[Any]:
        """Return a context in which the first call of a module is watched; compiled code cannot be."""
        if is_compiled or module in self._seen or self.are_there:
            return nullcontext()
        self._seen.add(module)
        return _Watch(self)


class _Watch(internals.DispatchMode):  # type: ignore[misc]
    def __init__(self, branches: Branches) -> None:
        super().__init__()
        self._branches = branches

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._branches.are_there |= any(tag in func.tags for tag in _TAGS)
        return func(*args, **(kwargs or {}))
