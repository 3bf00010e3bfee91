"""What watches the steps of a training: here nothing is compared, and only the pace may be measured."""

from typing import Any, Callable, List

import torch
from torch import nn

from ..global_tensors.tensors import Sharded
from .pace import Pace


class StepObserver:
    """Is told of batches, model calls and optimizer steps, and does nothing."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace

    def at_batch(self, indices: Any) -> None:
        """Notice the indices of a batch's samples."""

    def at_stream(self, batch: Any) -> None:
        """Notice a batch that every rank has read whole."""

    def at_call(
        self, original: Callable[..., Any], module: nn.Module, given: Any, every: List[Any], leads: List[List[Sharded]]
    ) -> None:
        """Notice a model call that comes next."""

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Notice an optimizer that is about to step."""

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Notice that an optimizer has stepped."""
