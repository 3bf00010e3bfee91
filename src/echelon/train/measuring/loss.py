"""The loss of a step: the sum of the numbers on which backward() was called since the step before."""

from contextlib import contextmanager
from typing import Any, Iterator, Optional, cast

import torch

from ...pytorch import internals
from .. import device as devices

READ_SECONDS = 1.0
"""The time between two losses that are read: a read of a device's number waits for the device."""
_item = internals.TensorBase.item
"""Torch.Tensor.item may be replaced: a training that is saved keeps what its script reads."""


_num_parts = 1


@contextmanager
def divided(num_ranks: int) -> Iterator[None]:
    """Say that backward() gets a rank's part of a sum over the ranks, and no loss whose mean over them counts."""
    global _num_parts
    _num_parts = num_ranks
    try:
        yield
    finally:
        _num_parts = 1


class Loss:
    """Takes the loss of one step in a while, and gives it once the device has computed it."""

    def __init__(self) -> None:
        self._is_wanted = True
        self._read_at = 0.0
        self._total: Optional[torch.Tensor] = None
        self._copy: Optional[torch.Tensor] = None
        self._copied: Any = None

    def went_backward(self, tensors: Any) -> None:
        """Note the loss of a pass backward; a loss that is no plain number is none."""
        if not self._is_wanted or type(tensors) is not torch.Tensor or tensors.numel() != 1 or devices.is_capturing():
            return
        with internals.plain_functions(), internals.without_modes(), torch.no_grad():
            value = tensors.detach().reshape(()).float() * _num_parts
            self._total = value if self._total is None else self._total + value

    def step(self, now: float) -> Optional[float]:
        """End a step; return the loss of this one or an earlier one, if it is known now."""
        if self._copied is not None:
            return self._copied_loss() if self._copied.query() else None
        if self._total is None or not self._is_wanted:
            self._is_wanted = self._is_wanted or now - self._read_at >= READ_SECONDS
            return None
        total, self._total = self._total, None
        self._is_wanted, self._read_at = False, now
        with internals.plain_functions(), internals.without_modes(), torch.no_grad():
            if not devices.is_accelerator(total.device):
                return float(_item(total))
            self._copy = torch.empty((), pin_memory=True)
            self._copy.copy_(total, non_blocking=True)
        self._copied = devices.event()
        return None

    def _copied_loss(self) -> float:
        self._copied = None
        return float(_item(cast("torch.Tensor", self._copy)))
