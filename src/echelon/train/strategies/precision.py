"""16-bit precision: where autocast applies, which devices support it, and the scale of an fp16 loss."""

from contextlib import nullcontext
from typing import Any

import torch

from ..wire import device as devices
from . import spreading
from .axes import Axes
from .strategy import Strategy, StrategyError

GROWTH_STEPS = 2000  # as torch.amp.GradScaler
FIRST_SCALE = 2.0**16


def check(strategy: Strategy, device: torch.device) -> None:
    if strategy.precision == "bf16" and devices.lacks_bf16(device):
        raise StrategyError(
            f"precision is bf16, but {devices.name(device)} computes only in fp16 and fp32",
            hint='precision="fp16"',
        )


def autocast(axes: Axes) -> Any:
    """Return the context of a forward pass: autocast, if fully_shard does not cast."""
    if axes.strategy.precision == "fp32" or spreading.casts(axes):
        return nullcontext()
    return torch.autocast(axes.world.device.type, dtype=spreading.DTYPES[axes.strategy.precision])


class LossScale:
    """The factor that keeps fp16 gradients from vanishing. The norm of the whole gradient says whether a step is lost;
    torch.amp.GradScaler looks only at the part of each rank, so ranks could differ."""

    def __init__(self, *, is_on: bool) -> None:
        self.value = FIRST_SCALE if is_on else 1.0
        self._is_on = is_on
        self._num_good = 0

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value, "good": self._num_good}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value, self._num_good = state["value"], int(state["good"])

    def is_lost(self, norm: torch.Tensor) -> bool:
        if not self._is_on:
            return False
        if not bool(torch.isfinite(norm)):
            self.value, self._num_good = self.value / 2, 0
            return True
        self._num_good += 1
        if self._num_good == GROWTH_STEPS:
            self.value, self._num_good = self.value * 2, 0
        return False
