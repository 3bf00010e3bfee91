"""What was measured of a training, and what an estimate of its time answers: values without arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from echelon.errors import UsageError
from echelon.machines.machine import Machine, Reference

STRONG, WEAK = "strong", "weak"
MODES = (STRONG, WEAK)
MOST_DEVICES = 10**7
LEAST, MOST = 1e-9, 1e12
"""Of seconds and of samples: numbers outside of these are not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRun:
    """A measured size of a training; raises UsageError for numbers that cannot be measured."""

    num_devices: int
    step_seconds: float
    """The time of an optimizer step after the warm-up."""
    spread: float | None = None
    """How far the steps' time was seen to vary, as a share of it to both sides; None: it was measured once."""
    global_batch: float | None = None
    """The samples of a step, of all devices together; None: unknown."""
    ranks_per_node: int | None = None
    """The devices of a whole node, also if the run had fewer; None: unknown."""
    precision: str = ""
    """Such as "bf16"; empty: unknown."""
    strategy: str = ""
    """How the devices share the work, such as "data" or "fsdp"; empty: unknown."""
    script: str = ""
    """What was trained; empty: unknown."""
    gradient_bytes: int | None = None
    """The gradients that a device exchanges in a step; None: unknown."""

    def __post_init__(self) -> None:
        """Refuse numbers that are not measurements."""
        if not 1 <= self.num_devices <= MOST_DEVICES:
            raise UsageError(f"a run on {self.num_devices} devices: a run has from 1 to {MOST_DEVICES} devices")
        for name, value in (("a step of", self.step_seconds), ("a global batch of", self.global_batch)):
            if value is not None and not (math.isfinite(value) and LEAST <= value <= MOST):
                raise UsageError(
                    f"{name} {value} on {self.num_devices} devices: the number must be from {LEAST:g} to {MOST:g}"
                )
        for what, number in (("ranks per node", self.ranks_per_node), ("bytes of gradients", self.gradient_bytes)):
            if number is not None and number < 1:
                raise UsageError(f"{number} {what}: the number must be at least 1")
        if self.spread is not None and not 0 <= self.spread < 1:
            raise UsageError(f"a spread of {self.spread}: it is a share, from 0 to less than 1")

    def is_across(self) -> bool:
        """Tell whether the run is known to need more than one node."""
        return self.ranks_per_node is not None and self.num_devices > self.ranks_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value, and the bounds in which the truth is expected, or the least and the greatest that were seen."""

    value: float
    least: float
    most: float

    @classmethod
    def exact(cls, value: float) -> Interval:
        return cls(value=value, least=value, most=value)

    def times(self, factor: float) -> Interval:
        return Interval(value=factor * self.value, least=factor * self.least, most=factor * self.most)

    def inverse(self, factor: float = 1.0) -> Interval:
        """Return factor / value, with the bounds in their order."""
        return Interval(value=factor / self.value, least=factor / self.most, most=factor / self.least)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSize:
    """A size that was not measured."""

    num_devices: int
    step_seconds: Interval
    speedup: Interval
    """How many times the work of the smallest measured size is done in the same time."""
    efficiency: Interval
    """The speedup by the devices, as a multiple of those of the smallest measured size."""
    samples_per_second: Interval | None
    """None: the batch is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """No estimate, and why."""

    reason: str
    repair: str
    """What to measure or to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """How many devices keep a parallel efficiency."""

    efficiency: float
    surely: int
    """The most devices for which the lower bound keeps it; 0: not even the measured ones."""
    probably: int
    """The most devices for which the estimate keeps it; 0: not even the measured ones."""
    is_limit: bool
    """Whether the largest size that is estimated still keeps it: more may do so too."""


STEP_BYTES = 1_800_000
"""What a step of a ring costs, as the bytes that the ring would move meanwhile.

Bus bandwidth is then 1 / (1 + ranks * STEP_BYTES / bytes) of the best. SimAI's table of measured rings (aliyun/SimAI,
inputs/ratio/nic_ratio.csv: 16 to 1024 GPUs, 16 MiB to 16 GiB) is met within a factor of 1.5 everywhere.
"""
BUCKET_BYTES = 25 << 20
"""Gradients are reduced in buckets of this size: `bucket_cap_mb` of DistributedDataParallel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSpeed:
    """The bandwidth between the devices of a kind of node, and between such nodes."""

    ranks_per_node: int
    inside_bytes_per_second: float | None
    """The best bus bandwidth within a node; None: the machine's file does not have it."""
    across_bytes_per_second: float | None
    """The best bus bandwidth of several nodes; None: the machine's file does not have it."""
    source: str

    def all_reduce_seconds(self, num_bytes: int, num_ranks: int) -> float | None:
        """Return the seconds in which ranks reduce gradients, in buckets; None if that bandwidth is not known.

        For each bucket the faster of a ring and a tree counts, as NCCL and RCCL choose between the two.
        """
        if num_ranks <= 1:
            return 0.0
        best = self.inside_bytes_per_second if num_ranks <= self.ranks_per_node else self.across_bytes_per_second
        if best is None:
            return None
        num_buckets = max(1, math.ceil(num_bytes / BUCKET_BYTES))
        of_bucket = num_bytes / num_buckets
        ring = 2 * (num_ranks - 1) / num_ranks * (of_bucket + num_ranks * STEP_BYTES) / best
        tree = 2 * (of_bucket + math.log2(num_ranks) * STEP_BYTES) / best
        return num_buckets * min(ring, tree)


def of_machine(machine: Machine, node_type: str = "", backend: str = "nccl") -> NetworkSpeed | None:
    """Return the network of a machine's nodes; None if its file has no reference rows for them.

    `node_type` may be empty if only one kind of node has reference rows. Raises UsageError if several have.
    """
    kinds = sorted({row.node_type for row in machine.references if row.backend == backend})
    if not node_type and len(kinds) > 1:
        raise UsageError(
            f"{machine.title} has reference bandwidths for {', '.join(kinds)}: which nodes are meant?",
            hint=f"--node-type {kinds[0]}",
        )
    wanted = node_type or "".join(kinds)
    rows = [row for row in machine.references if row.backend == backend and row.node_type == wanted]
    if not rows:
        return None
    inside = [row for row in rows if row.num_nodes == 1]
    across = [row for row in rows if row.num_nodes > 1]
    return NetworkSpeed(
        ranks_per_node=max(row.ranks_per_node for row in rows),
        inside_bytes_per_second=_best(inside),
        across_bytes_per_second=_best(across),
        source="; ".join(dict.fromkeys(row.source for row in rows)),
    )


def _best(rows: list[Reference]) -> float | None:
    """Return the bandwidth of a very large message by the row of the most nodes."""
    if not rows:
        return None
    row = max(rows, key=lambda each: (each.num_nodes, each.num_bytes))
    num_ranks = row.num_nodes * row.ranks_per_node
    return row.bus_bytes_per_second * (1 + num_ranks * STEP_BYTES / row.num_bytes)
