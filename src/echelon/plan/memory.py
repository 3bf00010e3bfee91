"""What of a training lies in a device's memory under each strategy, and which of them fits."""

from __future__ import annotations

import math
from dataclasses import dataclass

DTYPES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Bytes of an element as weights are stored; gradients and states of PyTorch's optimizers are like their weight."""
OPTIMIZERS = {"adamw": 2, "adam": 2, "lion": 1, "momentum": 1, "sgd": 0}
"""Numbers that an optimizer keeps for each weight."""
USABLE = 0.9  # of a memory: a training whose activations have less than a tenth of a device does not get far


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is trained."""

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
    """What there is for it."""

    num_ranks: int
    """Each with a device."""
    ranks_per_node: int
    device_bytes: int
    node_bytes: int
    """Memory of a node that the job gets; 0: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A strategy, by what it does with the three things that lie on a device."""

    name: str
    scale: str = ""
    """As `echelon run --scale` calls it; empty: it has to be asked for in the script."""
    code: str
    """As `run.parallelize` takes it."""
    spreads: frozenset[str] = frozenset()
    """What is spread over the ranks; of the rest each has a whole."""
    passing: str = ""
    """What is there whole besides, while it computes: "buckets" of gradients or "gathered" weights."""
    is_offloaded: bool = False
    """Whether what is spread lies in the node's memory."""


_ALL = frozenset({"weights", "gradients", "states"})
# in the order of what they send: the first that fits is the fastest. docs/strategies has the formulas, counted there
WAYS = (
    Way(name="data", scale="data", code="Strategy(replicate={n})", passing="buckets"),
    Way(name="ZeRO-1", code='Strategy(shard={n}, reshard="never")', spreads=frozenset({"states"})),
    Way(name="ZeRO-2", code='Strategy(shard={n}, reshard="after-backward")', spreads=_ALL, passing="gathered"),
    Way(name="fsdp", scale="fsdp", code="Strategy(shard={n})", spreads=_ALL),
    Way(name="offload", code="Strategy(shard={n}, offload=True)", spreads=_ALL, is_offloaded=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """How a model lies on the devices under one strategy; bytes of one rank."""

    strategy: str
    scale: str
    code: str
    weights_bytes: int
    gradients_bytes: int
    states_bytes: int
    passing_bytes: int
    """Buckets of gradients, or gathered weights."""
    host_bytes: int
    """What of the first three lies in the node's memory."""
    left_bytes: int
    """Of the device, for activations and what is not counted; below 0: it is missing."""
    fits: bool


def fits(model: Model, devices: Devices) -> tuple[Fit, ...]:
    """Judge each strategy that there is for so many ranks."""
    is_one = devices.num_ranks == 1
    ways = [way for way in WAYS if not (is_one and way.spreads) and (devices.node_bytes or not way.is_offloaded)]
    return tuple(_fit(way, model, devices) for way in ways)


def kept(way: Way, model: Model, num_ranks: int) -> dict[str, int]:
    """Return the bytes of weights, gradients and states that a rank keeps."""
    whole = {"weights": model.weight_bytes, "gradients": model.weight_bytes, "states": model.state_bytes}
    return {what: -(-size // num_ranks) if what in way.spreads else size for what, size in whole.items()}


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
    """Return the fewest ranks on which weights, gradients and states fit where all are spread."""
    return max(1, math.ceil((2 * model.weight_bytes + model.state_bytes) / (USABLE * device_bytes)))
