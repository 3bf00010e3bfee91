"""BatchNorm with the statistics of the whole batch, on devices and on CPUs (PyTorch's SyncBatchNorm needs a GPU)."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..pytorch import internals
from . import patches
from .global_tensors.model_calls import Owner

OWN_STATISTICS = "BatchNorm takes each rank's own statistics, so losses are not those of one device; see --sync-bn"


def is_there(parts: Iterable[nn.Module]) -> bool:
    """Say whether one of these modules is a BatchNorm that takes the statistics of its samples."""
    return any(isinstance(part, internals.BatchNormLayer) and part.training for part in parts)


class _Sum(torch.autograd.Function):
    """The sum over ranks; each rank uses the sum, so its gradient is also summed over ranks."""

    @staticmethod
    def forward(_ctx: object, part: torch.Tensor) -> torch.Tensor:
        result = part.clone()
        dist.all_reduce(result)
        return result

    @staticmethod
    def backward(_ctx: object, *gradients: torch.Tensor) -> object:
        return _Sum.apply(gradients[0])  # type: ignore[no-untyped-call]


def install(run: Owner) -> None:
    original = nn.functional.batch_norm

    def batch_norm(
        input: torch.Tensor,  # noqa: A002  (as PyTorch calls it)
        running_mean: torch.Tensor | None, running_var: torch.Tensor | None,
        weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, training: bool = False,
        momentum: float = 0.1, eps: float = 1e-5,
    ) -> torch.Tensor:  # fmt: skip
        if not training or not run.calls.is_inside or run.world.size == 1:
            return original(input, running_mean, running_var, weight, bias, training, momentum, eps)
        mean, variance, count = _statistics(input, has_samples=run.calls.has_rows)
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                unbiased = variance.flatten() * (count / (count - 1))
                running_mean.lerp_(mean.flatten().to(running_mean.dtype), momentum)
                running_var.lerp_(unbiased.to(running_var.dtype), momentum)
        result: torch.Tensor = (input - mean) * torch.rsqrt(variance + eps)
        shape = mean.shape
        result = result if weight is None else result * weight.view(shape)
        result = result if bias is None else result + bias.view(shape)
        return result.to(input.dtype)

    why = "BatchNorm takes its statistics from the whole batch."
    patches.replace(nn.functional, "batch_norm", batch_norm, why=why)


def watch(run: Owner, say: Callable[[str], None]) -> None:
    """Say once, where no comparison of the first step does, that ranks take their own statistics."""
    original, told = nn.functional.batch_norm, list[bool]()

    def batch_norm(*arguments: Any, **options: Any) -> Any:
        is_training = options.get("training", arguments[5] if len(arguments) > 5 else False)
        if is_training and not told and run.calls.is_inside:
            told.append(True)
            say(f"note: {OWN_STATISTICS}")
        return original(*arguments, **options)

    why = "A note tells that BatchNorm takes each rank's own statistics."
    patches.replace(nn.functional, "batch_norm", batch_norm, why=why)


def _statistics(samples: torch.Tensor, *, has_samples: bool) -> Any:
    """Return mean, variance (biased) and count over all dims but the second, and over all ranks."""
    values = samples.float() if samples.dtype in (torch.half, torch.bfloat16) else samples
    dims = [dim for dim in range(values.dim()) if dim != 1]
    is_counted = float(has_samples)  # a placeholder sample does not count
    sums = values.sum(dims, keepdim=True) * is_counted
    count = values.new_tensor([is_counted * values.numel() / values.size(1)])
    both = _Sum.apply(torch.cat([sums.flatten(), count]))  # type: ignore[no-untyped-call]
    total = both[-1].detach()
    mean = both[:-1].view(sums.shape) / total
    squares = ((values - mean) ** 2).sum(dims, keepdim=True) * is_counted
    return mean, _Sum.apply(squares) / total, total  # type: ignore[no-untyped-call]
