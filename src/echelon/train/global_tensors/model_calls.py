"""Whether a model is being computed now, and what the calls of models have shared among the ranks so far."""

import os
from contextlib import contextmanager
from typing import Any, Callable, Iterator, List, Optional, Protocol

from torch import nn

from ..rng.draws import Draws
from ..unshared_batch import Unshared
from . import doubts
from .tensors import GlobalTensor, Sharded


class Owner(Protocol):
    """The training that calls models."""

    draws: Draws


class ModelCalls:
    """The state of the calls of models; a subclass says how a model is called."""

    def __init__(self, run: Owner) -> None:
        self._draws = run.draws
        self._pid = os.getpid()
        self.is_inside = False
        self.is_idle = False
        """Whether modules are called as ever, and nothing is looked at."""
        self.leave_hooks = self.enter_hooks = _nothing
        self.is_compiled = False
        """Whether something was compiled: then hooks are left, which makes classes forget what they had looked up."""
        self.has_rows = True
        """Whether this rank has a sample of the batch that is computed, rather than one that stands in."""
        self.fraction = 1.0
        """How much of the batch that is computed this rank has."""
        self.num_shared = 0
        """Calls in which every rank had rows of its own."""
        self.num_samples = 0
        """The most that all ranks had together in one of them."""
        self.num_counted = 0
        """Calls in which every rank had the whole, for something counts what one device computes."""
        self.unshared: Optional[Unshared] = None
        """The last call in which the ranks could not share what a model was given."""
        self.doubt: Optional[doubts.Doubt] = None
        """Why rows that were shared may be no samples: it holds if the model fails, or its gradients differ."""

    def become_alone(self) -> None:
        """Go on in this process, which is a fork of the one that called models before."""
        self._pid = os.getpid()

    def succeeded_by(self, calls: "ModelCalls") -> "ModelCalls":
        """Let others call models from now on, whose hooks are in place already; return them."""
        calls.leave_hooks, calls.enter_hooks = self.leave_hooks, self.enter_hooks
        return calls

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Look at no calls."""
        if self.is_idle:  # inside of another, as where a loss calls a model that is trained too
            yield
            return
        self.is_idle = True
        try:
            with self._unhooked():
                yield
        finally:
            self.is_idle = False

    @contextmanager
    def _unhooked(self) -> Iterator[None]:
        """Take the hooks off while something compiled computes: it was compiled without them."""
        if self.is_compiled:
            self.leave_hooks()
        try:
            yield
        finally:
            if self.is_compiled:
                self.enter_hooks()

    def call(self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module in place of `original`, which is nn.Module.__call__ as PyTorch has it."""
        raise NotImplementedError

    @contextmanager
    def _inside(self, leads: Optional[List[Sharded]]) -> Iterator[None]:
        """Compute a model with plain PyTorch, and with random numbers, such as dropout, for these rows."""
        self.is_inside = True
        GlobalTensor.inside_of = leads[0] if leads else None
        try:
            with self._unhooked(), self._draws.of(leads):
                yield
        finally:
            self.is_inside = False
            GlobalTensor.inside_of = None

    @contextmanager
    def once_more(self, lead: Optional[Sharded] = None) -> Iterator[None]:
        """Compute a model for some rows with plain PyTorch, and with the random numbers that are at hand."""
        before = self.is_inside, GlobalTensor.inside_of
        self.is_inside, GlobalTensor.inside_of = True, lead
        try:
            with self._unhooked():
                yield
        finally:
            self.is_inside, GlobalTensor.inside_of = before

    def note_rows(self, lead: Sharded) -> None:
        """Note how much of a batch this rank has, or a shard, which is computed now."""
        self.fraction = lead.rows[lead.world.rank] / sum(lead.rows)
        self.has_rows = self.fraction > 0


def _nothing() -> None:
    pass
