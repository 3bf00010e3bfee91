"""Observe the steps of a training: this class compares nothing, and only its pace may be measured."""

from typing import Any, Callable, List

import torch
from torch import nn

from ..global_tensors.tensors import Sharded
from .pace import Pace


class StepObserver:
    """Receives batches, model calls and optimizer steps, and does nothing."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace

    def at_batch(self, indices: Any) -> None:
        """Notice the indices of a batch's samples."""

    def at_stream(self, batch: Any) -> None:
        """Notice a batch that every rank has read whole."""

    def at_call(
        self, original: Callable[..., Any], module: nn.Module, inputs: Any, every: List[Any], leads: List[List[Sharded]]
    ) -> None:
        """Notice a model call before it runs."""

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Notice an optimizer that is about to step."""

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Notice that an optimizer has stepped."""
