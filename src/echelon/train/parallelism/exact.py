"""`--exact`: a batch is computed in virtual shards, so that any number of ranks gets the same bits."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..exact.tree import WeightGradients, clip_by_whole_norm
from ..global_tensors.model_calls import ModelCalls
from ..global_tensors.pieces import Pieces
from ..global_tensors.tensors import GlobalTensor
from ..measuring.value_watch import divided
from ..scaling_error import ScalingError
from .fully_sharded import FullySharded
from .replicated import Replicated
from .shared_batches import SharedBatches


class Exact(SharedBatches):
    """Lets a parallelism that shares batches compute gradients shard by shard, and add them up by one tree."""

    cuts_draws = False
    keeps_dropout = True

    def headline(self) -> str:
        num_ranks, num_shards = self.world.processes.size, self.world.size
        valid = [str(1 << power) for power in range(num_shards.bit_length())]
        return (f"scaled over {num_ranks} rank{'s' if num_ranks > 1 else ''} in {num_shards} shards: the same bits "
        f"on {', '.join(valid[:-1])} or {valid[-1]} ranks")  # fmt: skip

    def backward(self, loss: Any, run_backward: Callable[[torch.Tensor], None], calls: ModelCalls) -> None:
        """Compute the gradients of each virtual shard by itself; the value of the loss is summed with them."""
        self.refuse_unshared(loss, calls)
        self.prepare()
        if not isinstance(loss, GlobalTensor):
            self._backward_of_shards(loss, run_backward)
        elif isinstance(loss, Pieces) and loss.is_total:
            parts: list[Any] = [part.local for part in loss.parts]
            with divided(self.world.processes.size):
                loss.keep_value(self._backward_of_shards(parts, run_backward))
        else:
            raise ScalingError(
                "with --exact the script calls backward() on a tensor with an entry for each sample",
                "call backward() on a single number: loss.mean().backward()",
            )

    def _backward_of_shards(self, loss: object, run_backward: Callable[[torch.Tensor], None]) -> torch.Tensor:
        weights = WeightGradients(self._parameters, self._sharded_roots())
        value: torch.Tensor = self.world.graph_cuts.backward(loss, run_backward, weights, self.world)
        return value

    def _sharded_roots(self) -> Sequence[nn.Module]:
        """Return the models whose weights are spread over the ranks."""
        return ()

    def clip_grad_norm(self) -> Callable[..., object]:
        return clip_by_whole_norm

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        super().before_step(optimizer)
        self.world.graph_cuts.at_step()


class ExactReplicated(Exact, Replicated):
    """`--scale data --exact`."""


class ExactFullySharded(Exact, FullySharded):
    """`--scale fsdp --exact`."""

    def _sharded_roots(self) -> Sequence[nn.Module]:
        return self._shards.roots if self._shards is not None else ()
