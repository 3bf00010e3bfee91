"""Every rank has all weights, and gradients are exchanged by PyTorch's own DistributedDataParallel.

DDP wraps the loss on its way to backward(), not the model. So a script may call any method of a model, any number of
times, and may have any number of models. DDP overlaps the communication as always.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel, distributed

from ...pytorch import distributed as private
from .. import buckets, patches
from ..base_parallelism import Setup
from ..buckets import ONE_BUCKET_MEGABYTES, Buckets, compress, described, is_of_matrices
from ..global_tensors.model_calls import ModelCalls
from ..wire import messages
from .shared_batches import SharedBatches

_HAS_SWITCH = "init_sync" in inspect.signature(DistributedDataParallel).parameters  # not in PyTorch 2.6
_NO_SYNC: dict[str, Any] = {"init_sync": False} if _HAS_SWITCH else {}


class _Trained(nn.Module):
    """A module with all parameters that optimizers train; its forward returns the loss unchanged."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        self.parameters_of_optimizers = nn.ParameterList(parameters)

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        return loss


class Replicated(SharedBatches):
    """`--scale data`."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        asked = setup.options.bucket_megabytes or setup.megabytes
        megabytes = ONE_BUCKET_MEGABYTES if is_of_matrices(setup.options.compress) else asked
        self._buckets = Buckets(setup.world, megabytes=megabytes, say=setup.say)
        self._ddp: DistributedDataParallel | None = None
        self._finds_unused = True
        self._branches = False
        self._backwards = 0  # since the last step
        self._backwards_per_step = 1  # in the step before
        self._is_in_step = False
        self._accumulates = True
        self._is_repeatable = setup.is_repeatable
        self._order: list[int] = []
        """Where sums are repeatable: the places of the parameters, in the order in which gradients are ready."""

    def headline(self) -> str:
        return super().headline() + described(self._options.compress)

    def learnt(self) -> dict[str, Any]:
        if self._ddp is None:
            return {}
        return {
            "parameters": len(self._parameters),
            "sparse": [place for place, one in enumerate(self._parameters) if id(one) in self._sparse],
            "finds_unused": self._finds_unused,
            "backwards": [self._backwards_per_step, self._backwards],
            "accumulates": self._accumulates,
            "observers": self.observers.are_there,
            "order": self._order,
        }

    def go_on(self, learnt: dict[str, Any]) -> None:
        """Exchange gradients at the same backwards as before, so that the sums have the same order."""
        if self.world.size == 1 or learnt.get("parameters") != len(self._parameters):
            return  # the first backward shows it again
        self._sparse = {id(self._parameters[place]): self._parameters[place] for place in learnt["sparse"]}
        self._backwards_per_step, self._backwards = learnt["backwards"]
        self._accumulates, self._order = learnt["accumulates"], learnt["order"]
        self.observers.are_there |= learnt["observers"]
        self._wrap(finds_unused=learnt["finds_unused"])

    def continue_as_one_device(self) -> None:
        super().continue_as_one_device()
        self._ddp = None

    def _forget_parameters(self) -> None:
        self._ddp = None

    def _wrap(self, *, finds_unused: bool) -> None:
        self._ddp = None  # its hooks go with it
        self._finds_unused = finds_unused
        dense = [parameter for parameter in self._parameters if id(parameter) not in self._sparse]
        if dense:
            self._buckets.begin(dense)
            with _without_sync():
                self._ddp = DistributedDataParallel(
                    _Trained(dense),
                    find_unused_parameters=finds_unused,
                    bucket_cap_mb=self._buckets.limit,
                    **_NO_SYNC,
                )
            compress(self._ddp, self._options.compress)
            if self._is_repeatable and not finds_unused and len(self._order) == len(self._parameters) == len(dense):
                buckets.sort_buckets(self._ddp, [self._parameters[place] for place in self._order])

    def backward(self, loss: object, run_backward: Callable[[torch.Tensor], None], calls: ModelCalls) -> None:
        self._branches = calls.branches.are_there
        super().backward(loss, run_backward, calls)

    def mean_gradients(self, loss: torch.Tensor, run_backward: Callable[[torch.Tensor], None]) -> None:
        self._backwards += not self._is_in_step
        if self._ddp is None:
            self._run_first(loss, run_backward)
            self._after_first()
        elif self._may_wait():
            with self._ddp.no_sync():  # a later backward before the step reduces these gradients too
                run_backward(self._ddp(loss))
            self.is_local = True
        else:
            with self._buckets.timing():
                run_backward(self._ddp(loss))
            self.is_local = False
            self._after_sync()
            if self._buckets.are_others_due():
                self._wrap(finds_unused=self._finds_unused)

    def _run_first(self, loss: torch.Tensor, run_backward: Callable[[torch.Tensor], None]) -> None:
        self._order = []
        if self.world.size == 1 or not self._is_repeatable:
            run_backward(loss)
            return
        with buckets.noted(self._parameters, self._order):
            run_backward(loss)
        self._order = messages.broadcast(list(dict.fromkeys(self._order)), 0)

    def _may_be_multiplied(self, loss: torch.Tensor) -> bool:
        if self.observers.are_there:
            return False
        if self._ddp is None:
            self.observers.look(loss, self._parameters)
        return not self.observers.are_there and all(parameter.grad is None for parameter in self._parameters)

    def _may_wait(self) -> bool:
        is_early = self._backwards < self._backwards_per_step and not self._is_in_step
        return is_early and self._accumulates and not self._finds_unused

    def _after_first(self) -> None:
        """Wrap the parameters with DDP, now that it is known whether every parameter gets a gradient.

        Where a model branches by values, or a rank has no gradient for a parameter, DDP looks for such parameters in
        each step. Otherwise a rank without that gradient would not take part in the exchange.
        """
        if self.world.size == 1:
            return
        is_missing = any(parameter.grad is None for parameter in self._parameters)
        finds_unused = self._on_any_rank(is_missing or self._branches)
        self.is_local = True
        self.reduce()
        self._wrap(finds_unused=finds_unused)

    def _on_any_rank(self, fact: bool) -> bool:
        told = torch.tensor(int(fact), device=self.world.device)
        dist.all_reduce(told, op=dist.ReduceOp.MAX)
        return bool(told.item())

    def _after_sync(self) -> None:
        """Detect the first backward that left parameters out: DDP has then not finished."""
        self._mean(list(self._sparse.values()))
        if self._ddp is None or self._finds_unused:
            return
        try:
            private.refuse_unfinished(self._ddp)
        except RuntimeError:
            self.is_local = True
            self.reduce()
            self._wrap(finds_unused=True)

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make gradients whole before an optimizer uses them, and learn how many backwards a step has."""
        super().before_step(optimizer)
        self._is_in_step = True
        self._backwards_per_step = max(self._backwards, 1)
        self._backwards = 0

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG002
        """End a step; until then a closure (LBFGS) may have called backward() again and used its gradients."""
        self._is_in_step = False

    def note_zero(self) -> None:
        """Notice that gradients are cleared between two backwards of one step: such gradients do not accumulate."""
        self._accumulates = self._accumulates and self._backwards == 0


@contextmanager
def _without_sync() -> Iterator[None]:
    """Make DDP without a broadcast of weights: ranks have agreed on them, and a graph may wait for its backward()."""
    if _HAS_SWITCH:
        yield
        return
    why = "DDP leaves weights as they are: the ranks have agreed on them."
    with patches.replaced(distributed, private.SYNC_OF_STATES, lambda *_args, **_kwargs: None, why=why):
        yield
