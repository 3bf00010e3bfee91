"""The time of an all-reduce of gradients on a machine, by bytes and ranks, from its reference rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

from echelon.errors import UsageError
from echelon.machines.machine import Machine, Reference

STEP_BYTES = 1_800_000
"""What a step of a ring costs, as the bytes that the ring would move meanwhile.

Bus bandwidth is then 1 / (1 + ranks * STEP_BYTES / bytes) of the best. SimAI's table of measured rings (aliyun/SimAI,
inputs/ratio/nic_ratio.csv: 16 to 1024 GPUs, 16 MiB to 16 GiB) is met within a factor of 1.5 everywhere.
"""
BUCKET_BYTES = 25 << 20
"""Gradients are reduced in buckets of this size: `bucket_cap_mb` of DistributedDataParallel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
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


def of_machine(machine: Machine, node_type: str = "", backend: str = "nccl") -> Network | None:
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
    return Network(
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
