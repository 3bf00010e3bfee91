"""What a booking costs by the machine's published rule."""

from __future__ import annotations

import math

from echelon.machines.machine import Billing, Machine


def rule(machine: Machine, partition: str) -> Billing | None:
    """Return the rule of a partition, or None where none is published."""
    return next((row for row in machine.billing if partition in row.partitions), None)


def units(
    row: Billing,
    *,
    num_nodes: int,
    cores_per_node: int,
    memory_bytes_per_node: int,
    devices_per_node: int,
    minutes: int,
) -> float:
    """Return what a job costs that runs to its time limit."""
    hours = minutes / 60
    if row.per_node_hour is not None:
        return row.per_node_hour * num_nodes * hours
    shares = [devices_per_node]
    if row.cores_per_unit:
        shares.append(math.ceil(cores_per_node / row.cores_per_unit))
    if row.memory_bytes_per_unit:
        shares.append(math.ceil(memory_bytes_per_node / row.memory_bytes_per_unit))
    return (row.factor or 1.0) * hours * max(shares) * num_nodes
