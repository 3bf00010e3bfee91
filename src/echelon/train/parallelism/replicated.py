"""Every rank has all weights, and gradients are exchanged by PyTorch's own DistributedDataParallel.

Not the model is called through DDP but the loss on its way to backward(): then it does not matter through which of its
methods the model was called, how often, or how many models there are. DDP overlaps the communication as always.
"""

import inspect
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel, distributed

from .. import patches
from ..buckets import Buckets
from ..compression import ONE_BUCKET_MEGABYTES, compress, is_of_matrices
from .base import Setup
from .shared_batches import SharedBatches

_HAS_SWITCH = "init_sync" in inspect.signature(DistributedDataParallel).parameters  # not in PyTorch 2.6
_NO_SYNC: Dict[str, Any] = {"init_sync": False} if _HAS_SWITCH else {}


class _Trained(nn.Module):
    """All parameters that some optimizer changes; its forward lets a loss pass."""

    def __init__(self, parameters: List[nn.Parameter]) -> None:
        super().__init__()
        self.parameters_of_optimizers = nn.ParameterList(parameters)

    def forward(self, loss: torch.Tensor) -> torch.Tensor:
        return loss


class Replicated(SharedBatches):
    """`--scale data`."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        megabytes = ONE_BUCKET_MEGABYTES if is_of_matrices(setup.options.compress) else setup.megabytes
        self._buckets = Buckets(setup.world, megabytes=megabytes, say=setup.say)
        self._ddp: Optional[DistributedDataParallel] = None
        self._finds_unused = True
        self._backwards = 0  # since the last step
        self._backwards_per_step = 1  # in the step before
        self._is_in_step = False
        self._accumulates = True

    def become_alone(self) -> None:
        super().become_alone()
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

    def mean_gradients(self, loss: torch.Tensor, run_backward: Callable[[torch.Tensor], None]) -> None:
        self._backwards += not self._is_in_step
        if self._ddp is None:
            run_backward(loss)
            self._after_first()
        elif self._may_wait():
            with self._ddp.no_sync():  # more come before the step, which will carry these along
                run_backward(self._ddp(loss))
            self.is_local = True
        else:
            with self._buckets.timing():
                run_backward(self._ddp(loss))
            self.is_local = False
            self._after_sync()
            if self._buckets.are_others_due():
                self._wrap(finds_unused=self._finds_unused)

    def _may_be_multiplied(self, loss: torch.Tensor) -> bool:
        if self.observers.are_there:
            return False
        if self._ddp is None:
            self.observers.look(loss, self._parameters)
        return not self.observers.are_there and all(parameter.grad is None for parameter in self._parameters)

    def _may_wait(self) -> bool:
        """Say whether this backward is one of several before a step, by what was seen in the step before."""
        is_early = self._backwards < self._backwards_per_step and not self._is_in_step
        return is_early and self._accumulates and not self._finds_unused

    def _after_first(self) -> None:
        """Let DDP take over, now that it is seen whether every parameter has a part in the loss."""
        if self.world.size == 1:
            return
        self.is_local = True
        self.reduce()
        self._wrap(finds_unused=any(parameter.grad is None for parameter in self._parameters))

    def _after_sync(self) -> None:
        """Notice a backward that left parameters out although none did before: DDP has then not finished."""
        self._mean(list(self._sparse.values()))
        if self._ddp is None or self._finds_unused:
            return
        try:
            self._ddp.reducer._check_reducer_finalized()
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
        """End a step; until then a closure (LBFGS) may have called backward() again and used what came of it."""
        self._is_in_step = False

    def note_zero(self) -> None:
        """Notice gradients that are cleared between two backwards of one step: each is used, none is accumulated."""
        self._accumulates = self._accumulates and self._backwards == 0


@contextmanager
def _without_sync() -> Iterator[None]:
    """Let DDP leave weights as they are, which ranks have agreed on: a graph may wait for its backward()."""
    if _HAS_SWITCH:
        yield
        return
    why = "DDP leaves weights as they are: the ranks have agreed on them."
    with patches.replaced(distributed, "_sync_module_states", lambda *_args, **_kwargs: None, why=why):
        yield
