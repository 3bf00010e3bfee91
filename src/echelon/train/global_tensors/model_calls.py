"""The state of the calls of models: whether a model computes now, and how many calls the ranks have shared."""

import os
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from ...pytorch import internals
from ..function_types import Args, Function, Kwargs
from ..gradient_hooks import LateHooks
from ..rng.draws import Draws
from ..rng.generators import Generators
from ..wire.world import World
from .tensors import GlobalTensor, Sharded


class Owner(Protocol):
    """The training that calls models."""

    world: World
    generators: Generators
    draws: Draws
    calls: "ModelCalls"
    late_hooks: LateHooks
    has_begun: bool


class Unshared(NamedTuple):
    """A call of a model whose arguments ranks cannot share."""

    model: str
    shape: tuple[int, ...] | None
    """The shape of its first tensor of numbers; None if it got none."""
    batch_sizes: set[int]
    """The batch sizes of the loaders whose loops were running."""


class ModelCalls:
    """The state of the calls of models; a subclass defines `call`."""

    def __init__(self, run: Owner) -> None:
        self._draws = run.draws
        self._pid = os.getpid()
        self.is_inside = False
        self.is_idle = False
        """Whether modules are called as PyTorch calls them, and echelon observes nothing."""
        self.leave_hooks = self.enter_hooks = _nothing
        self.is_compiled = False
        """Whether something was compiled: then hooks are removed while it computes, which clears classes' caches."""
        self.branches = Branches()
        self.has_rows = True
        """Whether this rank has a sample of the present batch, rather than a placeholder."""
        self.fraction = 1.0
        """The fraction of the present batch that this rank has."""
        self.num_shared = 0
        """The number of calls in which every rank had rows of its own."""
        self.num_samples = 0
        """The largest number of samples that all ranks had together in such a call."""
        self.num_counted = 0
        """The number of calls with the whole batch on every rank, while a tool counts the work of one device."""
        self.unshared: Unshared | None = None
        """The last call whose arguments the ranks could not share."""

    def continue_as_one_device(self) -> None:
        """Go on in this process, which is a fork of the process that called models before."""
        self._pid = os.getpid()

    def succeeded_by(self, calls: "ModelCalls") -> "ModelCalls":
        """Give the hooks to another object, which calls models from now on; return that object."""
        calls.leave_hooks, calls.enter_hooks = self.leave_hooks, self.enter_hooks
        return calls

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Observe no calls."""
        if self.is_idle:  # nested, as where a loss calls a model that is trained too
            yield
            return
        self.is_idle = True
        try:
            with self.unhooked():
                yield
        finally:
            self.is_idle = False

    @contextmanager
    def unhooked(self) -> Iterator[None]:
        """Remove the hooks while compiled code computes: it was compiled without them."""
        if self.is_compiled:
            self.leave_hooks()
        try:
            yield
        finally:
            if self.is_compiled:
                self.enter_hooks()

    def call(self, original: Function, module: nn.Module, args: Args, kwargs: Kwargs) -> Any:
        """Call a module in place of `original`, which is PyTorch's own nn.Module.__call__."""
        raise NotImplementedError

    @contextmanager
    def _inside(self, leads: list[Sharded] | None) -> Iterator[None]:
        """Compute a model with plain PyTorch; its random numbers, such as dropout, are those of these rows."""
        self.is_inside = True
        GlobalTensor.inside_of = leads[0] if leads else None
        try:
            with self.unhooked(), self._draws.of(leads):
                yield
        finally:
            self.is_inside = False
            GlobalTensor.inside_of = None

    @contextmanager
    def once_more(self, lead: Sharded | None = None) -> Iterator[None]:
        """Compute a model for some rows with plain PyTorch; leave the random number generators as they are."""
        before = self.is_inside, GlobalTensor.inside_of
        self.is_inside, GlobalTensor.inside_of = True, lead
        try:
            with self.unhooked():
                yield
        finally:
            self.is_inside, GlobalTensor.inside_of = before

    def note_rows(self, lead: Sharded) -> None:
        """Note the fraction of a batch that this rank has, or that the present virtual shard has."""
        self.fraction = lead.rows[lead.world.rank] / sum(lead.rows)
        self.has_rows = self.fraction > 0


def _nothing() -> None:
    pass


_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class Branches:
    """Whether a model has read a value, or made a tensor whose shape depends on values, in its first call."""

    def __init__(self) -> None:
        self.are_there = False
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def watched(self, module: nn.Module, *, is_compiled: bool) -> AbstractContextManager[object]:
        """Return a context in which the first call of a module is watched; compiled code cannot be."""
        if is_compiled or module in self._seen or self.are_there:
            return nullcontext()
        self._seen.add(module)
        return _Watch(self)


class _Watch(internals.DispatchMode):  # type: ignore[misc]
    def __init__(self, branches: Branches) -> None:
        super().__init__()
        self._branches = branches

    def __torch_dispatch__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs | None = None) -> object:
        self._branches.are_there |= any(tag in func.tags for tag in _TAGS)
        return func(*args, **(kwargs or {}))
