"""Each rank computes its samples of every batch; gradients become the mean over all ranks."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..base_parallelism import Parallelism, Setup
from ..batches import refusal
from ..global_tensors import losses
from ..global_tensors.model_calls import ModelCalls
from ..global_tensors.tensors import GlobalTensor, Partial
from ..gradient_hooks import multiply_all
from ..wire import exchange
from ..wire.gather import is_sharded
from .calls import Calls


class SharedBatches(Parallelism):
    """The base class of parallelisms that share batches; a subclass defines how gradients are exchanged."""

    kind_of_calls = Calls

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._sparse: dict[int, nn.Parameter] = {}
        """Parameters with sparse gradients."""

    def headline(self) -> str:
        return (
            f"scaled over {self.world.size} ranks: each computes its part of every batch, and sees the losses "
            "and counts of the whole"
        )

    def install(self, run: Any) -> None:
        losses.install(run)

    def mean_gradients(self, loss: torch.Tensor, run_backward: Callable[[torch.Tensor], None]) -> None:
        """Run backward() of this rank's loss, and let gradients be the mean over all ranks."""
        raise NotImplementedError

    def backward(self, loss: Any, run_backward: Callable[[torch.Tensor], None], calls: ModelCalls) -> None:
        self.refuse_unshared(loss, calls)
        self.prepare()
        if isinstance(loss, Partial):
            self._backward_of_total(loss, run_backward)
        else:
            self.mean_gradients(loss.whole() if isinstance(loss, GlobalTensor) else loss, run_backward)

    def refuse_unshared(self, loss: torch.Tensor, calls: ModelCalls) -> None:
        if not (calls.num_shared or calls.num_counted or isinstance(loss, GlobalTensor)):
            raise refusal(loss, calls.unshared, self.world.size, self.has_optimizers)

    def _backward_of_total(self, loss: Partial, run_backward: Callable[[torch.Tensor], None]) -> None:
        """Compute the gradients of this rank's part of a loss; its value and a doubtful factor travel meanwhile."""
        doubt = loss.doubt
        if doubt is not None and not self._may_be_multiplied(loss.unsettled):
            doubt = None
        part = (loss.local if doubt is None else loss.unsettled) * self.world.size
        self._send_value(loss)
        self.mean_gradients(part, run_backward)
        if doubt is not None:
            loss.start()()  # it was reduced during backward
            if doubt.factor is not None and doubt.factor != 1:
                multiply_all(part, doubt.factor, self._parameters)

    def _send_value(self, loss: Partial) -> None:
        loss.start()

    def _may_be_multiplied(self, loss: torch.Tensor) -> bool:  # noqa: ARG002
        """Say whether the gradients of this loss may be multiplied by a factor when they are there."""
        return False

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.reduce()
        super().before_step(optimizer)

    def reduce(self) -> None:
        """Take the mean of gradients over all ranks if it is still due; reduced gradients stay unchanged."""
        if not self.is_local or self.world.size == 1:
            return
        self.is_local = False
        self._mean([parameter for parameter in self._parameters if not is_sharded(parameter)])

    def _mean(self, parameters: list[nn.Parameter]) -> None:
        if not parameters:
            return
        kinds = torch.tensor([_kind(parameter.grad) for parameter in parameters], device=self.world.device)
        dist.all_reduce(kinds, op=dist.ReduceOp.MAX)  # a gradient may be missing on some ranks alone
        for parameter, kind in zip(parameters, kinds.tolist(), strict=False):
            if kind == _SPARSE:
                parameter.grad = self._sparse_mean(parameter)
            elif kind == _DENSE:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.world.size

    def _sparse_mean(self, parameter: nn.Parameter) -> torch.Tensor:
        """Gather the rows that the samples of all ranks have touched (nn.Embedding(sparse=True))."""
        self._sparse[id(parameter)] = parameter
        own = torch.zeros_like(parameter).to_sparse(1) if parameter.grad is None else parameter.grad
        gradient = own.coalesce()
        rows = exchange.counts(gradient.values().size(0), self.world)
        indices = exchange.gather(gradient.indices().t().contiguous(), self.world, rows)
        values = exchange.gather(gradient.values(), self.world, rows) / self.world.size
        return torch.sparse_coo_tensor(indices.t(), values, parameter.shape, check_invariants=False).coalesce()


_DENSE, _SPARSE = 1, 2


def _kind(gradient: torch.Tensor | None) -> int:
    return 0 if gradient is None else _SPARSE if gradient.is_sparse else _DENSE
