"""Compute the cost of a booking by the machine's published rule."""

from __future__ import annotations

import math
from dataclasses import dataclass

from echelon.machines.machine import Billing, Machine, Partition
from echelon.units import amount, counted, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Charged:
    """The parts of a job that determine its bill."""

    num_nodes: int
    devices_per_node: int
    cores_per_node: int
    memory_bytes_per_node: int
    minutes: int


def rule(machine: Machine, partition: str) -> Billing | None:
    """Return the rule of a partition; None if none is published."""
    return next((row for row in machine.billing if partition in row.partitions), None)


def units(row: Billing, job: Charged) -> float:
    """Return the cost of a job that runs to its time limit."""
    hours = job.minutes / 60
    if row.per_node_hour is not None:
        return row.per_node_hour * job.num_nodes * hours
    return (row.factor or 1.0) * hours * max(_shares(row, job).values()) * job.num_nodes


def _shares(row: Billing, job: Charged) -> dict[str, int]:
    """Return the devices that a node is billed for: its own, or more for cores or memory above their share."""
    shares = {counted(job.devices_per_node, "GPU"): job.devices_per_node}
    if row.cores_per_unit:
        count = math.ceil(job.cores_per_node / row.cores_per_unit)
        cores = counted(job.cores_per_node, "core")
        shares.setdefault(f"{counted(count, 'GPU')} for {cores}, {row.cores_per_unit} each", count)
    if row.memory_bytes_per_unit:
        count = math.ceil(job.memory_bytes_per_node / row.memory_bytes_per_unit)
        text = f"{size(job.memory_bytes_per_node)}, {size(row.memory_bytes_per_unit)} each"
        shares.setdefault(f"{counted(count, 'GPU')} for {text}", count)
    return shares


def product(machine: Machine, partition: Partition, job: Charged) -> str:
    """Return the multiplication behind a bill: 2 nodes × 8 GPUs × 2 h × 0.5; empty without a published rule."""
    row = rule(machine, partition.name)
    if row is None:
        return ""
    hours = f"{amount(job.minutes / 60)} h"
    nodes = counted(job.num_nodes, "node")
    if row.per_node_hour is not None:
        return f"{nodes} × {hours} × {amount(row.per_node_hour)} for each whole node and hour"
    shares = _shares(row, job)
    most = max(shares, key=shares.__getitem__)
    factor = row.factor or 1.0
    devices = machine.node_type(partition)
    per_chip = (devices.num_devices or 0) // (devices.num_chips or 1)
    because = f", since {per_chip} GPUs are one {devices.chip}" if factor * per_chip == 1 and per_chip > 1 else ""
    words = [*([nodes] if job.num_nodes > 1 else []), most if " for " not in most else f"({most})", hours]
    return " × ".join([*words, *([f"{amount(factor)}{because}"] if factor != 1 else [])])
