"""Compute a training's memory on a device under each strategy, and which strategies fit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from echelon.estimate.layout import share

DTYPES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of a weight's element; gradients and states of PyTorch's optimizers have the weight's type."""
TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""PyTorch's names of these types."""
OPTIMIZERS = {"adamw": 2, "adam": 2, "lion": 1, "momentum": 1, "sgd": 0}
"""The number of values that an optimizer keeps for each weight."""
USABLE = 0.9  # share of a device's memory: activations need at least the remaining tenth


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
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
class Devices:
    """The devices of the training."""

    num_ranks: int
    """Each rank has a device."""
    ranks_per_node: int
    device_bytes: int
    node_bytes: int
    """The memory of a node that the job gets; 0: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A strategy, by its treatment of weights, gradients and states."""

    name: str
    scale: str = ""
    """The value of `echelon run --scale`; empty: only the script can ask for it."""
    code: str
    """The argument of `run.parallelize`."""
    spreads: frozenset[str] = frozenset()
    """The parts that are sharded over ranks; each rank has the whole of the others."""
    passing: str = ""
    """Whole parts that exist during computation: "buckets" of gradients or "gathered" weights."""
    is_offloaded: bool = False
    """Whether sharded parts are in the node's memory."""


_ALL = frozenset({"weights", "gradients", "states"})
# in the order of communication: the first that fits is the fastest. docs/strategies derives the formulas
WAYS = (
    Way(name="data", scale="data", code="Strategy(replicate={n})", passing="buckets"),
    Way(name="ZeRO-1", code='Strategy(shard={n}, reshard="never")', spreads=frozenset({"states"})),
    Way(name="ZeRO-2", code='Strategy(shard={n}, reshard="after-backward")', spreads=_ALL, passing="gathered"),
    Way(name="fsdp", scale="fsdp", code="Strategy(shard={n})", spreads=_ALL),
    Way(name="offload", code="Strategy(shard={n}, offload=True)", spreads=_ALL, is_offloaded=True),
)


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


def fits(model: Model, devices: Devices) -> tuple[Fit, ...]:
    """Judge each strategy that this number of ranks allows."""
    is_one = devices.num_ranks == 1
    ways = [way for way in WAYS if not (is_one and way.spreads) and (devices.node_bytes or not way.is_offloaded)]
    return tuple(_fit(way, model, devices) for way in ways)


def kept(way: Way, model: Model, num_ranks: int) -> dict[str, int]:
    """Return the bytes of weights, gradients and states that a rank keeps."""
    whole = {"weights": model.weight_bytes, "gradients": model.weight_bytes, "states": model.state_bytes}
    return {what: share(size, num_ranks) if what in way.spreads else size for what, size in whole.items()}


def _fit(way: Way, model: Model, devices: Devices) -> Fit:
    mine = kept(way, model, devices.num_ranks)
    passing = model.weight_bytes if way.passing and devices.num_ranks > 1 else 0
    host = sum(mine.values()) if way.is_offloaded else 0
    left = devices.device_bytes - (sum(mine.values()) - host) - passing
    has_host = host * devices.ranks_per_node <= USABLE * devices.node_bytes
    return Fit(
        strategy=way.name,
        scale=way.scale,
        code=way.code.format(n=devices.num_ranks),
        weights_bytes=mine["weights"],
        gradients_bytes=mine["gradients"],
        states_bytes=mine["states"],
        passing_bytes=passing,
        host_bytes=host,
        left_bytes=left,
        fits=left >= (1 - USABLE) * devices.device_bytes and (has_host or not host),
    )


def least_ranks(model: Model, device_bytes: int) -> int:
    """Return the fewest ranks on which fully sharded weights, gradients and states fit."""
    return max(1, math.ceil((2 * model.weight_bytes + model.state_bytes) / (USABLE * device_bytes)))
