"""Every rank holds a part of each weight; PyTorch's fully_shard gathers the weights that a model computes with."""

from collections.abc import Callable
from typing import Any

import torch

from .. import fsdp, optimizer_kinds
from ..base_parallelism import Setup
from ..wire.gather import is_sharded
from .shared_batches import SharedBatches


class FullySharded(SharedBatches):
    calls_need_all_ranks = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._shards: fsdp.ShardedModels | None = fsdp.ShardedModels(setup.world)

    def install(self, run: object) -> None:
        super().install(run)
        fsdp.install()
        optimizer_kinds.install()

    def continue_as_one_device(self) -> None:
        super().continue_as_one_device()
        self._shards = None

    def apply(self) -> None:
        if self._shards is None:
            return
        self._shards.refuse_thawed()
        self.prepare()
        if not all(is_sharded(parameter) for parameter in self._parameters):
            self._shards.apply(self.known_optimizers(), self._parameters)
            self._remember()

    def mean_gradients(self, loss: torch.Tensor, run_backward: Callable[[torch.Tensor], None]) -> None:
        run_backward(loss)  # fully_shard takes the mean of gradients as it scatters them
        self.is_local = True
        self.reduce()

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._shards is not None:
            self._shards.refuse_optimizer(optimizer)
        super().before_step(optimizer)

    def current_parameter(self, parameter: object) -> Any:
        return parameter if self._shards is None else self._shards.replaced.current_parameter(parameter)
