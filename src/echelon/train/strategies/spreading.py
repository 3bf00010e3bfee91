"""Replicate or shard a model's weights with PyTorch's DDP, fully_shard and ZeRO: the outermost step."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ..function_types import Kwargs, ParamGroup
from ..wire import device as devices
from ..wire import gather
from ..wire.gather import is_dtensor
from . import blocks, norms
from .axes import Axes

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
MOST_AT_ONCE = 1 << 24  # elements: 64 MB more in float32; with larger tensors the calls take little of the time


def apply(model: nn.Module, model_blocks: dict[str, nn.Module], axes: Axes) -> nn.Module:
    """Shard or replicate a model; return the module to call from now on."""
    if axes.strategy.is_fully_sharded:
        _shard(model, model_blocks, axes)
    elif axes.strategy.num_data > 1 and not axes.num_shards:
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    return model


def _shard(model: nn.Module, model_blocks: dict[str, nn.Module], axes: Axes) -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    strategy = axes.strategy
    settings: Kwargs = {
        "mesh": axes.mesh_of_weights(),
        "mp_policy": _precision(axes, is_root=False),
        "reshard_after_forward": strategy.reshard == "always" and strategy.shard > 1,
    }
    if strategy.offload:
        settings["offload_policy"] = CPUOffloadPolicy(pin_memory=devices.is_accelerator(axes.world.device))
    tied = blocks.tied(model)
    for name in model_blocks:
        block = model.get_submodule(name)
        if not any(id(parameter) in tied for parameter in block.parameters()):  # tied weights stay with the root
            fully_shard(block, **settings)
    settings["mp_policy"] = _precision(axes, is_root=True)
    settings["reshard_after_forward"] = False  # the root's own weights are needed first in backward
    fully_shard(model, **settings)
    gather.install(model, axes.world.device)


def casts(axes: Axes) -> bool:
    """Say whether fully_shard casts weights to 16 bits; in an exact run autocast does so under every strategy."""
    return axes.strategy.is_fully_sharded and not axes.num_shards


def _precision(axes: Axes, *, is_root: bool) -> object:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if axes.strategy.precision == "fp32" or not casts(axes):
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(
        param_dtype=DTYPES[axes.strategy.precision],
        reduce_dtype=torch.float32,
        output_dtype=torch.float32 if is_root else None,
    )


def sync_gradients(modules: Iterable[nn.Module], *, is_last: bool) -> None:
    """Let fully_shard exchange gradients only in the last backward of a step."""
    for module in modules:
        spread: Any = module
        if hasattr(spread, "set_requires_gradient_sync"):
            spread.set_requires_gradient_sync(is_last)
            spread.set_is_last_backward(is_last)


def make_optimizer(kind: type, groups: list[ParamGroup], axes: Axes, settings: Kwargs) -> Any:
    """Make an optimizer of the weights that this rank has; ZeRO-1 gives each rank the states of some weights."""
    weights = [weight for group in groups for weight in group["params"]]
    if axes.num_shards or any(is_dtensor(weight) for weight in weights):
        from .. import optimizer_kinds

        # some optimizers give other bits one by one than at once: in an exact run every rank steps at once
        at_once = axes.num_shards > 0 or _are_small([norms.local(one) for one in weights])
        kind = optimizer_kinds.on_own_elements(kind, at_once=at_once)
    if not axes.strategy.spreads_states_only:
        return kind(groups, **settings)
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(groups, optimizer_class=kind, process_group=axes.group("shard"), **settings)


def _are_small(tensors: Sequence[torch.Tensor]) -> bool:
    """Say whether to step on all tensors at once: it saves calls, and costs memory. On a GPU PyTorch does so itself."""
    is_on_cpu = all(not devices.is_accelerator(one.device) for one in tensors)
    return is_on_cpu and sum(one.numel() for one in tensors) <= MOST_AT_ONCE
