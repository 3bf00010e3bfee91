"""States of optimizers without values, to read a checkpoint into."""

from typing import Tuple

import torch


def empty_state(
    key: str, shape: Tuple[int, ...], dtype: torch.dtype, parameter: torch.Tensor, optimizer: torch.optim.Optimizer
) -> torch.Tensor:
    """Return a tensor as an optimizer makes it: like its weight; the count of steps may be on the host."""
    if key == "step" and not shape:
        is_on_device = any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
        return torch.zeros(shape, dtype=dtype, device=parameter.device if is_on_device else "cpu")
    if tuple(parameter.shape) == tuple(shape):
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False).detach()
    return torch.zeros(shape, dtype=dtype, device=parameter.device)
