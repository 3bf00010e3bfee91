"""The reference bandwidth of a sweep, published or kept by a user; and the row under which a sweep is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from echelon.checks.finding import Wanted
from echelon.machines.machine import Reference
from echelon.units import counted

ASKED_SHARE = 0.8  # LUMI's own acceptance test requires 0.95 on quiet nodes
MACHINES_SHARE = 0.5  # other jobs share the network, and library versions differ
KEPT = "measured by echelon check --collectives --keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """The bus bandwidth that healthy nodes reach."""

    bytes_per_second: float
    least_share: float
    """A bandwidth below this share of the reference is reported."""
    name: str
    source: str


def asked(bytes_per_second: float) -> Usual:
    """Return the reference that the command line gives."""
    return Usual(
        bytes_per_second=bytes_per_second, least_share=ASKED_SHARE, name="the reference", source="as asked: --reference"
    )


def usual(result: Mapping[str, Any], wanted: Wanted) -> Usual | None:
    """Return the machine's reference for this sweep; None if its file has none that compares.

    A ring's bus bandwidth hardly depends on the number of nodes once there are two: more are compared with fewer.
    """
    kind, num_nodes = wanted.kind, len(result["nodes"])
    like = [
        row
        for row in wanted.references
        if kind is not None
        and (row.node_type, row.backend) == (kind.name, result["backend"])
        and row.ranks_per_node * num_nodes == result["num_ranks"]
        and row.num_bytes <= result["sweep"][-1]["bytes"]
        and (row.num_nodes == num_nodes or 2 <= row.num_nodes < num_nodes)
    ]
    if not like:
        return None
    row = max(like, key=lambda each: each.num_nodes)
    return Usual(
        bytes_per_second=row.bus_bytes_per_second,
        least_share=MACHINES_SHARE,
        name=f"what {counted(row.num_nodes, 'such node')} of {wanted.machine} reach",
        source=f"{row.source}, {row.seen.isoformat()}",
    )


def kept(result: Mapping[str, Any], node_type: str, today: date) -> Reference:
    """Return a sweep as a reference row for later sweeps."""
    num_nodes = len(result["nodes"])
    return Reference(
        node_type=node_type,
        num_nodes=num_nodes,
        ranks_per_node=result["num_ranks"] // num_nodes,
        backend=result["backend"],
        num_bytes=result["sweep"][-1]["bytes"],
        bus_bytes_per_second=round(max(row["bus_bytes_per_second"] for row in result["sweep"])),
        note="The fastest of the sizes up to this one.",
        source=KEPT,
        seen=today,
    )
