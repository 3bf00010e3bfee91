"""What speaks against a partition: one row a limit, each with the number that disagrees and the nearest that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from echelon.machines.machine import NodeType, Partition
from echelon.plan.shape import Shape, usable_cores
from echelon.spec import Request
from echelon.units import size, slurm_size, slurm_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """One limit that a request breaks."""

    limit: str
    asked: str
    nearest: str
    """Options that would fit."""
    source: str

    def __str__(self) -> str:
        return f"{self.limit}, and {self.asked}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is judged."""

    request: Request
    partition: Partition
    kind: NodeType
    laid: Shape
    today: date


PURPOSES = {
    "test": "it is for short trials",
    "interactive": "it is for interactive work",
    "request": "it is for those who have applied for it",
    "unconfirmed": "whether it still stands was not found",
}

Check = Callable[[Case], "tuple[str, str, str] | None"]


def objections(case: Case) -> tuple[Objection, ...]:
    """Return everything that speaks against this partition."""
    found = [check(case) for check in CHECKS]
    return tuple(
        Objection(limit=limit, asked=asked, nearest=nearest, source=case.partition.source)
        for limit, asked, nearest in filter(None, found)
    )


def _retired(case: Case) -> tuple[str, str, str] | None:
    retired_on = case.partition.retired_on
    if retired_on is None or retired_on > case.today:
        return None
    return f"closed on {retired_on}", "it will not come back", "another partition"


def _on_request(case: Case) -> tuple[str, str, str] | None:
    if case.partition.purpose == "batch" or case.request.partition == case.partition.name:
        return None
    purpose = PURPOSES.get(case.partition.purpose, f"it is for {case.partition.purpose}")
    return purpose, "was not asked for by name", f"--partition {case.partition.name}"


def _chip(case: Case) -> tuple[str, str, str] | None:
    wanted = case.request.chip
    if not wanted or wanted.lower() == case.kind.chip.lower():
        return None
    return f"its nodes have {case.kind.chip}", f"{wanted} was asked for", f"--chip {case.kind.chip}"


def _time(case: Case) -> tuple[str, str, str] | None:
    most = case.partition.max_minutes
    if most is None or case.request.minutes <= most:
        return None
    return (
        f"at most {slurm_time(most)} of time",
        f"{slurm_time(case.request.minutes)} was asked for",
        f"--time {slurm_time(most)}",
    )


def _most_nodes(case: Case) -> tuple[str, str, str] | None:
    most = case.partition.max_nodes
    if most is None or case.laid.num_nodes <= most:
        return None
    devices = case.kind.num_devices
    each = f" of {devices} devices" if devices else ""
    nearest = f"--gpus {most * devices}" if devices and case.request.num_devices else f"--nodes {most}"
    return f"at most {_nodes(most)}{each}", f"this needs {case.laid.num_nodes}", nearest


def _least_nodes(case: Case) -> tuple[str, str, str] | None:
    least = case.partition.min_nodes
    if least is None or case.laid.num_nodes >= least:
        return None
    return f"at least {_nodes(least)}", f"this needs {case.laid.num_nodes}", f"--nodes {least}"


def _most_devices(case: Case) -> tuple[str, str, str] | None:
    most = case.partition.max_devices
    devices = case.laid.devices_per_node * case.laid.num_nodes
    if most is None or devices <= most:
        return None
    return f"at most {most} devices in a job", f"this takes {devices}", f"--gpus {most}"


def _least_devices(case: Case) -> tuple[str, str, str] | None:
    least = case.partition.min_devices
    devices = case.laid.devices_per_node * case.laid.num_nodes
    if least is None or devices >= least:
        return None
    return f"at least {least} devices in a job", f"this takes {devices}", f"--gpus {least}"


def _devices_of_node(case: Case) -> tuple[str, str, str] | None:
    per_node = [number for number in (case.partition.max_devices_per_node, case.kind.num_devices) if number]
    most = min(per_node, default=case.laid.ranks_per_node)
    if case.laid.ranks_per_node <= most:
        return None
    nearest = f"--gpus {most * case.laid.num_nodes}"
    return f"at most {most} devices on a node", f"{case.laid.ranks_per_node} were asked for on each", nearest


def _unknown_node(case: Case) -> tuple[str, str, str] | None:
    """One device fits on any node; more would be a guess, unless a person says how many nodes it takes."""
    if case.kind.num_devices or case.laid.ranks_per_node == 1 or case.request.num_nodes:
        return None
    return (
        "how many devices its nodes have is not published",
        f"{case.laid.ranks_per_node} were asked for",
        f"--gpus {case.laid.ranks_per_node} --nodes 1 --partition {case.partition.name}",
    )


def _cores(case: Case) -> tuple[str, str, str] | None:
    there, cores = usable_cores(case.kind), case.laid.cores_per_node
    if there and cores > there:
        nearest = f"--cores-per-gpu {there // case.laid.ranks_per_node}"
        reserved = f" ({len(case.kind.reserved_cores)} of {case.kind.num_cores} are reserved)"
        return (
            f"a node has {there} usable cores" + (reserved if case.kind.reserved_cores else ""),
            f"{case.laid.ranks_per_node} × {case.laid.cores_per_rank} = {cores} were asked for",
            nearest,
        )
    most = case.partition.max_cores
    if most is not None and cores * case.laid.num_nodes > most:
        nearest = f"--cores-per-gpu {most // case.laid.num_ranks}"
        return f"at most {most} cores in a job", f"this takes {cores * case.laid.num_nodes}", nearest
    return None


def _memory(case: Case) -> tuple[str, str, str] | None:
    there, memory = case.kind.memory_bytes, case.laid.memory_bytes_per_node
    if not there or memory <= there:
        return None
    nearest = f"--mem-per-gpu {slurm_size(there // case.laid.ranks_per_node)}"
    return f"a node gives jobs {size(there)}", f"{size(memory)} were asked for on each", nearest


def _nodes(number: int) -> str:
    return f"{number} node{'s' if number != 1 else ''}"


def _cores_of_node(case: Case) -> tuple[str, str, str] | None:
    most, cores = case.partition.max_cores_per_node, case.laid.cores_per_node
    if most is None or cores <= most:
        return None
    nearest = f"--cores-per-gpu {max(1, most // case.laid.ranks_per_node)}"
    return f"at most {most} cores on a node", f"{cores} were asked for", nearest


def _memory_of_node(case: Case) -> tuple[str, str, str] | None:
    most, memory = case.partition.max_memory_bytes_per_node, case.laid.memory_bytes_per_node
    if most is None or memory <= most:
        return None
    nearest = f"--mem-per-gpu {slurm_size(most // case.laid.ranks_per_node)}"
    return f"at most {size(most)} of memory on a node", f"{size(memory)} were asked for", nearest


def _no_gres(case: Case) -> tuple[str, str, str] | None:
    if case.kind.gres or case.kind.vendor == "none":
        return None
    return "how its devices are asked for is not published", "they are wanted", "--partition NAME"


CHECKS: tuple[Check, ...] = (
    _no_gres,
    _retired,
    _on_request,
    _chip,
    _time,
    _most_nodes,
    _least_nodes,
    _most_devices,
    _least_devices,
    _devices_of_node,
    _unknown_node,
    _cores,
    _cores_of_node,
    _memory,
    _memory_of_node,
)
