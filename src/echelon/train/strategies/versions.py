"""Bridge differences between the versions of PyTorch that strategies work with, from 2.6 on."""

import inspect
from collections.abc import Callable
from typing import Any

import torch

from ...pytorch import targets
from ...pytorch.internals import FULLY_SHARD_ON_CPU, numbers
from ..wire import device as devices
from .strategy import Strategy, StrategyError


def unsent(function: Callable[..., object]) -> dict[str, Any]:
    """Return the arguments to cut a tensor that all ranks have without sending it; before 2.7 the first rank sends."""
    return {"src_data_rank": None} if "src_data_rank" in inspect.signature(function).parameters else {}


def unscaled(schedule: Callable[..., object]) -> dict[str, object]:
    """Return the arguments that let a schedule leave gradients unscaled; before 2.7 no schedule scales them."""
    return {"scale_grads": False} if "scale_grads" in inspect.signature(schedule).parameters else {}


def no_outputs(schedule: Any) -> dict[str, bool]:
    """Return the option that drops the model's outputs of a micro-batch after it; older versions keep all of a step."""
    return {"return_outputs": False} if "return_outputs" in inspect.signature(schedule.step).parameters else {}


class VersionError(StrategyError):
    """A strategy that needs another version of PyTorch."""


def check(strategy: Strategy, device: torch.device, version: str = torch.__version__) -> None:
    """Refuse a strategy with which this version of PyTorch would fail or hang in a step."""
    version_numbers = numbers(version)
    on_cpu = not devices.is_accelerator(device)
    for is_wanted, needed, why, hint in (
        (strategy.is_fully_sharded and on_cpu, FULLY_SHARD_ON_CPU, "shards with fully_shard on a CPU",
         'reshard="never" with only the data axes'),
        (strategy.pipeline > 1 and strategy.schedule != "gpipe" and on_cpu, (2, 9),
         "sends and receives at once on a CPU", 'schedule="gpipe"'),
        (strategy.pipeline > 1 and strategy.schedule == "zbv" and on_cpu, (2, 10),
         "sends to its own rank on a CPU", 'schedule="dualpipev"'),
        (strategy.context > 1, (2, 10), "computes with tokens that are cut", "context=1"),
    ):  # fmt: skip
        if is_wanted and version_numbers < needed:
            raise VersionError(
                f"{strategy.as_code()} {why}, and PyTorch {version} cannot do that yet",
                hint=f"PyTorch 2.13; or {hint}",
            )
    has_parts = strategy.is_fully_sharded or max(strategy.tensor, strategy.context) > 1
    targets.check(*["dtensor"] * has_parts, *["pipeline"] * (strategy.pipeline > 1))
