"""Compute a training's memory on a device under each strategy, and which strategies fit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from echelon.estimate import choice
from echelon.estimate.layout import AFTER_BACKWARD, NEVER, Layout, share

DTYPES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of a weight's element; gradients and states of PyTorch's optimizers have the weight's type."""
TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}  # PyTorch's names of these types
OPTIMIZERS = {"adamw": 2, "adam": 2, "lion": 1, "momentum": 1, "sgd": 0}
"""The number of values that an optimizer keeps for each weight."""
USABLE = 0.9  # share of a device's memory: activations need at least the remaining tenth


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """The model that is trained."""

    num_parameters: int
    dtype: str
    optimizer: str

    @property
    def weight_bytes(self) -> int:
        return self.num_parameters * DTYPES[self.dtype]

    @property
    def state_bytes(self) -> int:
        return self.weight_bytes * OPTIMIZERS[self.optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """The devices of the training."""

    num_ranks: int
    """Each rank has a device."""
    ranks_per_node: int
    device_bytes: int
    node_bytes: int
    """The memory of a node that the job gets; 0: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The memory of one rank under a strategy, in bytes."""

    strategy: str
    scale: str
    code: str
    weights_bytes: int
    gradients_bytes: int
    states_bytes: int
    passing_bytes: int
    """Buckets of gradients, or gathered weights."""
    host_bytes: int
    """The part of weights, gradients and states in the node's memory."""
    left_bytes: int
    """The device memory that remains for activations and uncounted parts; below 0: missing."""
    fits: bool


_NAMES = {"FSDP": "fsdp", "FSDP + offload": "offload"}
"""Strategies have the names of their options here; the others are called as everywhere."""


def layouts(num_ranks: int) -> list[Layout]:
    """Return the strategies of the table, in the order of communication: the first that fits is the fastest."""
    simple = [layout for layout in choice.candidates(num_ranks, num_ranks) if not layout.checkpointing]
    return simple + ([Layout(shard=num_ranks, offload=True)] if num_ranks > 1 else [])


def fits(model: TrainedModel, devices: DeviceGroup) -> tuple[Fit, ...]:
    """Judge each strategy that this number of ranks allows."""
    possible = [layout for layout in layouts(devices.num_ranks) if devices.node_bytes or not layout.offload]
    return tuple(_fit(layout, model, devices) for layout in possible)


def kept(layout: Layout, model: TrainedModel) -> dict[str, int]:
    """Return the bytes of weights, gradients and states that a rank keeps; docs/strategies derives the formulas."""
    states = share(model.state_bytes, layout.shard)
    weights = model.weight_bytes if layout.reshard == NEVER else share(model.weight_bytes, layout.shard)
    return {"weights": weights, "gradients": weights, "states": states}


def _passing(layout: Layout, model: TrainedModel) -> int:
    """Return the whole parts that exist during computation: buckets of gradients, or gathered weights."""
    return model.weight_bytes if layout.replicate > 1 or layout.reshard == AFTER_BACKWARD else 0


def _fit(layout: Layout, model: TrainedModel, devices: DeviceGroup) -> Fit:
    mine, passing = kept(layout, model), _passing(layout, model)
    host = sum(mine.values()) if layout.offload else 0
    left = devices.device_bytes - (sum(mine.values()) - host) - passing
    has_host = host * devices.ranks_per_node <= USABLE * devices.node_bytes
    is_alone = layout.num_ranks == 1
    return Fit(
        strategy="data" if is_alone else _NAMES.get(layout.name, layout.name),
        scale="data" if is_alone else choice.how(layout),
        code="Strategy(replicate=1)" if is_alone else layout.code,
        weights_bytes=mine["weights"],
        gradients_bytes=mine["gradients"],
        states_bytes=mine["states"],
        passing_bytes=passing,
        host_bytes=host,
        left_bytes=left,
        fits=left >= (1 - USABLE) * devices.device_bytes and (has_host or not host),
    )


def least_ranks(model: TrainedModel, device_bytes: int) -> int:
    """Return the fewest ranks on which fully sharded weights, gradients and states fit."""
    return max(1, math.ceil((2 * model.weight_bytes + model.state_bytes) / (USABLE * device_bytes)))
