"""The limits of a partition, one row each, with the number that exceeds it and a number that fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date

from echelon.machines.machine import NodeType, Partition
from echelon.plan.misfit import Change
from echelon.plan.shape import PlanShape, fair_memory, usable_cores
from echelon.spec import Request
from echelon.units import GIB, counted, size, slurm_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """A limit that a request breaks."""

    limit: str
    asked: str
    changes: tuple[Change, ...]
    """Changes of the request that satisfy the limit; empty if none does."""
    source: str

    def __str__(self) -> str:
        return f"{self.limit}, but {self.asked}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCase:
    """A request on a partition, with its layout."""

    request: Request
    partition: Partition
    kind: NodeType
    laid: PlanShape
    today: date


PURPOSES = {
    "test": "it is for short trials",
    "interactive": "it is for interactive work",
    "request": "it is for users who have applied for it",
    "unconfirmed": "no source confirms that it still exists",
}

Broken = tuple[str, str, tuple[Change, ...]]
Check = Callable[[RequestCase], "Broken | None"]


def objections(case: RequestCase) -> tuple[Objection, ...]:
    broken = [check(case) for check in CHECKS]
    return tuple(
        Objection(limit=limit, asked=asked, changes=changes, source=case.partition.source)
        for limit, asked, changes in filter(None, broken)
    )


def _retired(case: RequestCase) -> Broken | None:
    retired_on = case.partition.retired_on
    if retired_on is None or retired_on > case.today:
        return None
    return f"it closed on {retired_on}", "the job would start later", ()


def _on_request(case: RequestCase) -> Broken | None:
    row, request = case.partition, case.request
    if row.purpose == "batch" or row.name == request.partition or (request.qos and row.qos == request.qos):
        return None
    purpose = PURPOSES.get(row.purpose, f"it is for {row.purpose}")
    return purpose, "the job does not name it", (("partition", row.name),)


def _chip(case: RequestCase) -> Broken | None:
    wanted = case.request.chip
    if not wanted or case.kind.chip.lower() in ("", wanted.lower()):
        return None
    return f"its nodes have {case.kind.chip}", f"the job asks for {wanted}", (("chip", case.kind.chip),)


def _time(case: RequestCase) -> Broken | None:
    most = case.partition.max_minutes_on(case.laid.num_nodes)
    if most is None or case.request.minutes <= most:
        return None
    asked = f"the job asks for {slurm_time(case.request.minutes)}"
    size_words = f" for {counted(case.laid.num_nodes, 'node')}" if case.partition.time_limits else ""
    return f"at most {slurm_time(most)} of time{size_words}", asked, (("minutes", most),)


def _most_nodes(case: RequestCase) -> Broken | None:
    most = case.partition.max_nodes
    if most is None or case.laid.num_nodes <= most:
        return None
    devices = case.kind.num_devices
    of_devices = f" of {counted(devices, 'device')}" if devices else ""
    return (
        f"at most {counted(most, 'node')}{of_devices}",
        f"the job needs {case.laid.num_nodes}",
        _with_nodes(case, most),
    )


def _least_nodes(case: RequestCase) -> Broken | None:
    least = case.partition.min_nodes
    if least is None or case.laid.num_nodes >= least:
        return None
    return f"at least {counted(least, 'node')}", f"the job needs {case.laid.num_nodes}", _with_nodes(case, least)


def _with_nodes(case: RequestCase, num_nodes: int) -> tuple[Change, ...]:
    """Return the changes to this number of nodes: full nodes, or with the requested devices on each."""
    if not case.request.num_devices:
        return (("num_nodes", num_nodes),)
    if case.request.num_nodes:
        return ("num_nodes", num_nodes), ("num_devices", num_nodes * case.laid.ranks_per_node)
    return (("num_devices", num_nodes * (case.kind.num_devices or case.laid.ranks_per_node)),)


def _most_devices(case: RequestCase) -> Broken | None:
    most = case.partition.max_devices
    devices = case.laid.devices_per_node * case.laid.num_nodes
    if most is None or devices <= most:
        return None
    return (
        f"at most {counted(most, 'device')} in a job",
        f"the job takes {devices}",
        _with_devices(case, most, above=False),
    )


def _least_devices(case: RequestCase) -> Broken | None:
    least = case.partition.min_devices
    devices = case.laid.devices_per_node * case.laid.num_nodes
    if least is None or devices >= least:
        return None
    return (
        f"at least {counted(least, 'device')} in a job",
        f"the job takes {devices}",
        _with_devices(case, least, above=True),
    )


def _with_devices(case: RequestCase, number: int, *, above: bool) -> tuple[Change, ...]:
    """Return the changes to this number of devices, or the nearest number that the requested nodes allow."""
    nodes, per_node = case.request.num_nodes, case.laid.devices_per_node
    if not case.request.num_devices:
        return (("num_nodes", -(-number // per_node) if above else max(1, number // per_node)),)
    if not nodes:
        return (("num_devices", number),)
    if number < nodes:
        return ("num_nodes", 1), ("num_devices", number)
    return (("num_devices", (-(-number // nodes) if above else number // nodes) * nodes),)


def _devices_of_node(case: RequestCase) -> Broken | None:
    per_node = [number for number in (case.partition.max_devices_per_node, case.kind.num_devices) if number]
    most = min(per_node, default=case.laid.ranks_per_node)
    if case.laid.ranks_per_node <= most:
        return None
    asked = f"the job asks for {case.laid.ranks_per_node} on each"
    return f"at most {counted(most, 'device')} on a node", asked, (("num_devices", most * case.laid.num_nodes),)


def _unknown_node(case: RequestCase) -> Broken | None:
    """Refuse several devices on a node of unknown size, unless the request has a number of nodes."""
    if case.kind.num_devices or case.laid.ranks_per_node == 1 or case.request.num_nodes:
        return None
    add = "add --nodes" if case.request.partition else "add --nodes and --partition"
    asked = f"the job asks for {case.laid.ranks_per_node}: {add}"
    return "the number of GPUs of a node is not published", asked, (("num_nodes", 1),)


def _cores(case: RequestCase) -> Broken | None:
    there, cores = usable_cores(case.kind), case.laid.cores_per_node
    if there and cores > there:
        reserved = f" ({len(case.kind.reserved_cores)} of {case.kind.num_cores} are reserved)"
        return (
            f"a node has {counted(there, 'usable core')}" + (reserved if case.kind.reserved_cores else ""),
            f"the job asks for {case.laid.ranks_per_node} × {case.laid.cores_per_rank} = {cores}",
            _with_cores(case, there // case.laid.ranks_per_node),
        )
    most = case.partition.max_cores
    if most is not None and cores * case.laid.num_nodes > most:
        changes = _with_cores(case, most // case.laid.num_ranks)
        return f"at most {counted(most, 'core')} in a job", f"the job takes {cores * case.laid.num_nodes}", changes
    return None


def _cores_of_node(case: RequestCase) -> Broken | None:
    most, cores = case.partition.max_cores_per_node, case.laid.cores_per_node
    if most is None or cores <= most:
        return None
    changes = _with_cores(case, most // case.laid.ranks_per_node)
    return f"at most {counted(most, 'core')} on a node", f"the job asks for {cores}", changes


def _with_cores(case: RequestCase, cores_per_rank: int) -> tuple[Change, ...]:
    if cores_per_rank < 1:
        return ()
    threads = case.kind.threads_per_core or 1
    if case.request.cpus_per_rank:
        return (("cpus_per_rank", cores_per_rank * threads),)
    return (("cores_per_device", cores_per_rank),)


def _memory(case: RequestCase) -> Broken | None:
    there, memory = case.kind.memory_bytes, case.laid.memory_bytes_per_node
    if not there or memory <= there:
        return None
    asked = f"the job asks for {size(memory)} on each"
    return f"a node gives jobs {size(there)}", asked, _with_memory(case, there)


def _memory_of_node(case: RequestCase) -> Broken | None:
    most, memory = case.partition.max_memory_bytes_per_node, case.laid.memory_bytes_per_node
    if most is None or memory <= most:
        return None
    return f"at most {size(most)} of memory on a node", f"the job asks for {size(memory)}", _with_memory(case, most)


def _brought_memory(case: RequestCase) -> Broken | None:
    """Refuse more memory than the share of the devices, where memory comes with devices."""
    share, ranks, memory = fair_memory(case.kind), case.laid.ranks_per_node, case.laid.memory_bytes_per_node
    if not case.kind.memory_follows_devices or not share or memory <= share * ranks:
        return None
    asked = f"the job asks for {size(memory // ranks)} for each device"
    return f"each device brings {size(share)} of memory, and no more", asked, _with_memory(case, share * ranks)


def _with_memory(case: RequestCase, bytes_per_node: int) -> tuple[Change, ...]:
    """Return the change to this memory per node, in whole GiB, in the option that was used."""
    is_per_node = case.request.memory_bytes_per_node > 0
    most = bytes_per_node if is_per_node else bytes_per_node // case.laid.ranks_per_node
    unit = GIB if most >= GIB else 1 << 20
    field = "memory_bytes_per_node" if is_per_node else "memory_bytes_per_device"
    return ((field, most // unit * unit),) if most >= unit else ()


def _no_gres(case: RequestCase) -> Broken | None:
    if case.kind.gres or case.kind.vendor == "none":
        return None
    return "the Slurm option for its devices is not published", "the job needs devices", ()


CHECKS: tuple[Check, ...] = (
    _no_gres, _retired, _on_request, _chip, _time, _most_nodes, _least_nodes, _most_devices, _least_devices,
    _devices_of_node, _unknown_node, _cores, _cores_of_node, _memory, _memory_of_node, _brought_memory,
)  # fmt: skip
