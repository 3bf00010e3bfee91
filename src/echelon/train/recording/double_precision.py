"""Let a recorded training compute in float64, in which rounding is too small to be taken for a mistake."""

from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from .. import patches


def begin() -> None:
    """Make new tensors float64, and give modules their float32 inputs in float64.

    A script that names float32 itself may fail of it; then `echelon prove` has no more to say than before.
    """
    torch.set_default_dtype(torch.float64)
    why = "A training whose steps rounding may have moved is compared in float64."
    patches.hook(register_module_forward_pre_hook, lambda _, inputs: tuple(map(_widened, inputs)), why=why)


def _widened(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype is torch.float32 else value
    return type(value)(map(_widened, value)) if type(value) in (tuple, list) else value
