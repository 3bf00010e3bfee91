"""States of optimizers without values, to read a checkpoint into."""

from typing import Tuple

import torch


def empty_state(
    shape: Tuple[int, ...], dtype: torch.dtype, parameter: torch.Tensor, optimizer: torch.optim.Optimizer
) -> torch.Tensor:
    """Return a tensor as an optimizer makes it: like its weight; a count is on the host, unless it is fused."""
    if tuple(parameter.shape) == tuple(shape):
        return torch.zeros_like(parameter, dtype=dtype, requires_grad=False).detach()
    is_on_device = any(group.get("capturable") or group.get("fused") for group in optimizer.param_groups)
    return torch.zeros(shape, dtype=dtype, device=parameter.device if is_on_device or shape else "cpu")
