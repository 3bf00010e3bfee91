"""Judge the partitions for a request, with its devices and its cost there; choose one, and explain the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

from echelon.errors import UsageError
from echelon.machines.machine import Billing, Machine, NodeType, Partition
from echelon.plan.limits import Objection, RequestCase, objections
from echelon.plan.misfit import Alternative, Change, Misfit, way
from echelon.plan.shape import PlanShape, shape
from echelon.spec import Request
from echelon.units import amount, cost, counted, size


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCandidate:
    """A partition, laid out and judged for a request."""

    partition: Partition
    kind: NodeType
    laid: PlanShape
    objections: tuple[Objection, ...]
    charged: Charged
    cost: float | None
    unit: str

    @property
    def weight(self) -> tuple[float, int, int]:
        """The criterion of the choice: the bill, or the devices used if no rule is published; then fewer nodes."""
        taken = float(self.laid.devices_per_node * self.laid.num_nodes)
        return self.cost if self.cost is not None else taken, self.laid.num_nodes, self.partition.preference


def candidates(request: Request, machine: Machine, today: date) -> list[PartitionCandidate]:
    """Return every partition of the machine, judged for the request; also a named one that a table may lack."""
    request = as_devices(request)
    judged = []
    impossible: UsageError | None = None
    named = named_partitions(request, machine)
    for partition in dict.fromkeys((*machine.partitions, *named)):
        kind = machine.node_type(partition)
        if kind.vendor == "none":
            continue
        try:
            laid = shape(request, kind, partition)
        except UsageError as error:
            if named == (partition,):
                raise
            impossible = error
            continue
        case = RequestCase(request=request, partition=partition, kind=kind, laid=laid, today=today)
        judged.append(_candidate(case, machine))
    if impossible is not None and not judged:
        raise impossible
    return judged


def _candidate(case: RequestCase, machine: Machine) -> PartitionCandidate:
    row, laid = rule(machine, case.partition.name), case.laid
    charged = Charged(
        num_nodes=laid.num_nodes,
        devices_per_node=laid.devices_per_node,
        cores_per_node=laid.cores_per_node,
        memory_bytes_per_node=laid.memory_bytes_per_node
        or (case.kind.memory_bytes_per_device or 0) * laid.ranks_per_node,
        minutes=case.request.minutes,
    )
    return PartitionCandidate(
        partition=case.partition,
        kind=case.kind,
        laid=laid,
        objections=objections(case),
        charged=charged,
        cost=units(row, charged) if row is not None else None,
        unit=row.unit if row is not None else "",
    )


def named_partitions(request: Request, machine: Machine) -> tuple[Partition, ...]:
    """Return the partitions that the request allows: all, those of its name or QOS, or one that is not listed."""
    return machine.rows(request.partition, request.qos) or _unlisted(request, machine)


def _unlisted(request: Request, machine: Machine) -> tuple[Partition, ...]:
    """Return a row without limits for a name that an incomplete table lacks."""
    open_rows = [row for row in machine.partitions if row.retired_on is None]
    if machine.complete or not open_rows or machine.rows(request.partition or request.qos, ""):
        return ()
    first = open_rows[0]
    is_qos = not request.partition and not first.partition_option
    row = Partition(
        source=machine.source,
        seen=machine.seen,
        name=request.partition or request.qos,
        node_type=first.node_type if is_qos or len({row.node_type for row in open_rows}) == 1 else "",
        slurm_partition="none" if is_qos else "",
        qos=request.qos if is_qos else "",
        constraint=first.constraint if is_qos else "",
    )
    return (row,)


def choose(request: Request, machine: Machine, judged: list[PartitionCandidate]) -> PartitionCandidate:
    """Return the cheapest partition that fits; raise UsageError with the limits if none does."""
    named = named_partitions(request, machine)
    if request.partition or named != machine.partitions:
        return _named(request, machine, judged, named)
    _refuse_unknown_chip(request, judged)
    fitting = [candidate for candidate in judged if not candidate.objections]
    if fitting:
        return min(fitting, key=lambda candidate: candidate.weight)
    of_chip = [each for each in judged if not request.chip or each.kind.chip.lower() == request.chip.lower()]
    raise _none_fits(machine, of_chip)


def _named(
    request: Request, machine: Machine, judged: list[PartitionCandidate], named: tuple[Partition, ...]
) -> PartitionCandidate:
    matches = [candidate for candidate in judged if candidate.partition in named]
    if not matches and named == () and machine.rows(request.partition, ""):
        rows = machine.rows(request.partition, "")
        raise Misfit(
            f"{request.partition or machine.title} is not used with --qos {request.qos}, but with "
            f"{', '.join(row.qos for row in rows)}",
            ways=tuple(_to(request, row) for row in rows),
        )
    if not matches:
        raise unknown_partition(request.partition, machine)
    fitting = [candidate for candidate in matches if not candidate.objections]
    if fitting:
        return min(fitting, key=lambda candidate: candidate.weight)
    raise _refusal(request, machine, _by_promise(matches)[0], judged)


def _to(request: Request, row: Partition, label: str = "") -> Alternative:
    """Return the way to a partition: by its QOS, if the request names one."""
    if not (request.qos and row.qos):
        return way(label, partition=row.name)
    return way(label, qos=row.qos, **({"partition": row.name} if request.partition else {}))


def unknown_partition(name: str, machine: Machine) -> Misfit:
    import difflib

    names = [partition.name for partition in machine.partitions]
    open_first = sorted(machine.partitions, key=lambda row: (row.purpose != "batch", row.preference))
    if name in names:
        return Misfit(
            f"partition {name} of {machine.title} has no devices, or their number is not published",
            ways=tuple(way(partition=row.name) for row in open_first if row.name != name),
        )
    near = difflib.get_close_matches(name, names, n=len(names), cutoff=0.4)
    return Misfit(
        f"{machine.title} has no partition {name or repr('')}; it has {', '.join(names)}",
        ways=tuple(way(partition=other) for other in dict.fromkeys([*near, *(row.name for row in open_first)])),
        num_shown=2 if near else 1,
    )


def _refuse_unknown_chip(request: Request, judged: list[PartitionCandidate]) -> None:
    chips = sorted({candidate.kind.chip for candidate in judged})
    if request.chip and request.chip.lower() not in [chip.lower() for chip in chips]:
        import difflib

        near = difflib.get_close_matches(request.chip.upper(), chips, n=len(chips), cutoff=0.3)
        usual = {candidate.kind.chip for candidate in judged if _is_open(candidate)}
        near = sorted(dict.fromkeys([*near, *chips]), key=lambda chip: chip not in usual)
        raise Misfit(
            f"--chip {request.chip}: this machine has {', '.join(chips)}", ways=tuple(way(chip=chip) for chip in near)
        )


def _refusal(
    request: Request, machine: Machine, candidate: PartitionCandidate, judged: list[PartitionCandidate]
) -> Misfit:
    """Explain why the named partition refuses the request; other partitions may accept it unchanged."""
    first = candidate.objections[0]
    texts = "; ".join(str(objection) for objection in candidate.objections)
    others = [each for each in _by_promise(judged) if each is not candidate and _is_open(each)]
    return Misfit(
        f"{candidate.partition.name} on {machine.title}: {texts} ({first.source})",
        ways=(*_mending(candidate), *(_to(request, each.partition) for each in others if not each.objections)),
        num_shown=2,
    )


def _none_fits(machine: Machine, judged: list[PartitionCandidate]) -> Misfit:
    """Explain which limits the open partitions have, and which partitions would accept the request if named."""
    ranked = sorted(judged, key=lambda candidate: len(candidate.objections))
    shown = [each for each in ranked if _is_open(each)]
    shown += [each for each in ranked if each not in shown and len(each.objections) == 1]
    names: dict[str, list[str]] = {}
    for candidate in shown or ranked:
        texts = "; ".join(str(objection) for objection in candidate.objections)
        names.setdefault(f"{texts} ({candidate.objections[0].source})", []).append(candidate.partition.name)
    lines = [f"    {', '.join(partitions)}: {text}" for text, partitions in names.items()]
    promising = _by_promise(judged)
    ways = [way(partition=each.partition.name) for each in promising if _is_open(each)]
    # a smaller request, and the partitions that accept the whole request if they are named
    unasked = [each for each in promising if not _is_open(each)]
    named = [way(_for_whom(each), partition=each.partition.name) for each in unasked if len(each.objections) == 1]
    others = [each for each in unasked if len(each.objections) > 1]
    later = [Alternative(changes=(("partition", each.partition.name),), is_last_resort=True) for each in others]
    return Misfit(
        f"no partition of {machine.title} accepts this job:",
        ways=(*ways, *named, *later),
        num_shown=2,
        details="\n".join(lines),
    )


def _for_whom(candidate: PartitionCandidate) -> str:
    return {"request": "if you have applied for it", "test": "for a short trial"}.get(candidate.partition.purpose, "")


def _mending(candidate: PartitionCandidate) -> tuple[Alternative, ...]:
    """Return the changes for the first broken limit; the others are judged again after the change."""
    is_hopeless = any(not objection.changes for objection in candidate.objections)
    return () if is_hopeless else (Alternative(changes=candidate.objections[0].changes),)


def _is_open(candidate: PartitionCandidate) -> bool:
    return candidate.partition.purpose == "batch" and candidate.partition.retired_on is None


def _by_promise(judged: Sequence[PartitionCandidate]) -> list[PartitionCandidate]:
    return sorted(judged, key=_promise, reverse=True)


def _promise(candidate: PartitionCandidate) -> tuple[bool, int, int, int]:
    """Rank how close a partition is: open to all, few broken limits, its size, or its time if only time is short."""
    first = candidate.objections[0].changes[:1] if candidate.objections else ()
    is_time = [name for name, _ in first] == ["minutes"]
    longest = (candidate.partition.max_minutes or 0) if is_time else 0
    return candidate.partition.purpose == "batch", -len(candidate.objections), longest, _reach(candidate)


def _reach(candidate: PartitionCandidate) -> int:
    return candidate.partition.max_devices or (candidate.partition.max_nodes or 0) * (candidate.kind.num_devices or 1)


def why_not(name: str, chosen: PartitionCandidate, judged: list[PartitionCandidate], machine: Machine) -> str:
    matches = [candidate for candidate in judged if candidate.partition.name == name]
    if not matches:
        import difflib

        names = [candidate.partition.name for candidate in judged]
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
        raise UsageError(unknown_partition(name, machine).message, hint=f"--why-not {near[0]}" if near else "")
    other = matches[0]
    if other.objections:
        return "; ".join(f"{objection} ({objection.source})" for objection in other.objections)
    if other is chosen:
        return "nothing: this is the chosen partition"
    if other.weight[0] == chosen.weight[0] and other.laid.num_nodes > chosen.laid.num_nodes:
        return (
            f"it fits, but on {other.laid.num_nodes} nodes, and {chosen.partition.name} takes {chosen.laid.num_nodes}"
        )
    if other.weight[0] > chosen.weight[0]:
        unit = chosen.unit or "devices"
        return (
            f"it fits, but takes {cost(other.weight[0], unit)}, and {chosen.partition.name} takes "
            f"{amount(chosen.weight[0])}"
        )
    why = chosen.partition.preferred_because
    return f"it fits and costs the same; echelon prefers {chosen.partition.name}" + (f": {why}" if why else "")


def as_devices(request: Request) -> Request:
    """Return the request in devices and nodes; raise Misfit if its numbers contradict each other."""
    per_node = request.devices_per_node
    if not per_node:
        return request
    devices, nodes = request.num_devices, request.num_nodes
    if not devices:
        return replace(request, num_devices=per_node * (nodes or 1), num_nodes=nodes or 1)
    if devices % per_node or (nodes and devices != nodes * per_node):
        raise _contradiction(devices, nodes, per_node)
    return replace(request, num_nodes=devices // per_node)


def _contradiction(devices: int, nodes: int, share: int) -> Misfit:
    ways: list[Alternative] = []
    if nodes:
        ways.append(way(num_devices=share * nodes))
        if devices % nodes == 0:
            ways.append(way(devices_per_node=devices // nodes))
        product = f"--nodes {nodes} × --gpus-per-node {share} make {nodes * share} GPUs"
        return Misfit(f"{product}, but --gpus asks for {devices}", ways=tuple(ways), num_shown=2)
    below, above = devices - devices % share, devices + share - devices % share
    ways += [way(num_devices=number) for number in (below, above) if number]
    ways += [way(devices_per_node=number) for number in range(min(share, devices), 0, -1) if devices % number == 0][:1]
    return Misfit(f"--gpus {devices} is not a multiple of --gpus-per-node {share}", ways=tuple(ways), num_shown=2)


def changed(request: Request, changes: Sequence[Change]) -> Request:
    """Return the request with the changes; devices that were requested per node stay so."""
    fields = dict(changes)
    if (
        request.devices_per_node
        and ("num_devices" in fields or "num_nodes" in fields)
        and "devices_per_node" not in fields
    ):
        fields = {**fields, **_per_node(request, fields)}
    return replace(request, **fields)  # type: ignore[arg-type]


def _per_node(request: Request, fields: dict[str, int | str]) -> dict[str, int | str]:
    per_node = request.devices_per_node
    devices, nodes = int(fields.get("num_devices", 0)), int(fields.get("num_nodes", 0))
    if not nodes:
        before = request.num_nodes or max(1, request.num_devices // per_node)
        nodes = before if devices % before == 0 else max(1, devices // per_node)
    devices = devices or nodes * per_node
    total: dict[str, int | str] = {"num_devices": devices if request.num_devices else 0}
    if request.num_nodes or nodes > 1:
        total["num_nodes"] = nodes
    return {**total, "devices_per_node": max(1, devices // nodes)}


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
