"""Which partitions a request could go to, which one is taken, and what speaks against the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from echelon.errors import UsageError
from echelon.machines.machine import Machine, NodeType, Partition
from echelon.plan import billing
from echelon.plan.limits import Case, Objection, objections
from echelon.plan.shape import Shape, shape
from echelon.spec import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One partition as it would be for a request."""

    partition: Partition
    kind: NodeType
    laid: Shape
    objections: tuple[Objection, ...]
    cost: float | None
    unit: str

    @property
    def weight(self) -> tuple[float, int]:
        """What is compared: the bill, or where nobody publishes one the devices that are taken; then the preference."""
        taken = float(self.laid.devices_per_node * self.laid.num_nodes)
        return self.cost if self.cost is not None else taken, self.partition.preference


def candidates(request: Request, machine: Machine, today: date) -> list[Candidate]:
    """Return every partition of the machine, judged."""
    found = []
    impossible: UsageError | None = None
    for partition in machine.partitions:
        kind = machine.node_type(partition)
        if kind.vendor == "none":
            continue
        try:
            laid = shape(request, kind, partition)
        except UsageError as error:
            if request.partition == partition.name:
                raise
            impossible = error
            continue
        cost, unit = _cost(machine, partition, kind, laid, request)
        case = Case(request=request, partition=partition, kind=kind, laid=laid, today=today)
        found.append(
            Candidate(partition=partition, kind=kind, laid=laid, objections=objections(case), cost=cost, unit=unit)
        )
    if impossible is not None and not found:
        raise impossible
    return found


def _cost(
    machine: Machine, partition: Partition, kind: NodeType, laid: Shape, request: Request
) -> tuple[float | None, str]:
    row = billing.rule(machine, partition.name)
    if row is None:
        return None, ""
    cost = billing.units(
        row,
        num_nodes=laid.num_nodes,
        cores_per_node=laid.cores_per_node,
        memory_bytes_per_node=laid.memory_bytes_per_node or (kind.memory_bytes_per_device or 0) * laid.ranks_per_node,
        devices_per_node=laid.devices_per_node,
        minutes=request.minutes,
    )
    return cost, row.unit


def choose(request: Request, machine: Machine, judged: list[Candidate]) -> Candidate:
    """Return the cheapest that fits; raise UsageError that names the limits where none does."""
    if request.partition:
        return _named(request, machine, judged)
    _refuse_unknown_chip(request, judged)
    fitting = [candidate for candidate in judged if not candidate.objections]
    if fitting:
        return min(fitting, key=lambda candidate: candidate.weight)
    of_chip = [each for each in judged if not request.chip or each.kind.chip.lower() == request.chip.lower()]
    raise _none_fits(machine, of_chip)


def _named(request: Request, machine: Machine, judged: list[Candidate]) -> Candidate:
    found = [candidate for candidate in judged if candidate.partition.name == request.partition]
    if not found:
        raise unknown_partition(request.partition, machine)
    if found[0].objections:
        raise _refusal(machine, found[0])
    return found[0]


def unknown_partition(name: str, machine: Machine) -> UsageError:
    """Return the error for a name that the machine does not have."""
    import difflib

    names = [partition.name for partition in machine.partitions]
    if name in names:
        return UsageError(
            f"partition {name} of {machine.title} has no devices, or nobody has published how many",
            hint="--nodes N with --gpus N   or another --partition",
        )
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    return UsageError(
        f"{machine.title} has no partition {name}; it has {', '.join(names)}",
        hint=f"--partition {(near or names)[0]}",
    )


def _refuse_unknown_chip(request: Request, judged: list[Candidate]) -> None:
    chips = sorted({candidate.kind.chip for candidate in judged})
    if request.chip and request.chip.lower() not in [chip.lower() for chip in chips]:
        import difflib

        near = difflib.get_close_matches(request.chip.upper(), chips, n=1, cutoff=0.3)
        raise UsageError(
            f"--chip {request.chip}: this machine has {', '.join(chips)}", hint=f"--chip {(near or chips)[0]}"
        )


def _refusal(machine: Machine, candidate: Candidate) -> UsageError:
    first = candidate.objections[0]
    texts = "; ".join(str(objection) for objection in candidate.objections)
    return UsageError(
        f"{candidate.partition.name} on {machine.title}: {texts} ({first.source})",
        hint=f"nearest: {nearest(candidate.objections)}",
    )


def _none_fits(machine: Machine, judged: list[Candidate]) -> UsageError:
    """Explain with the partitions that a job can go to unasked, and with those that would take it if named."""
    ranked = sorted(judged, key=lambda candidate: len(candidate.objections))
    shown = [each for each in ranked if each.partition.purpose == "batch" and each.partition.retired_on is None]
    shown += [each for each in ranked if each not in shown and len(each.objections) == 1]
    lines = []
    for candidate in shown or ranked:
        texts = "; ".join(str(objection) for objection in candidate.objections)
        lines.append(f"\n    {candidate.partition.name}: {texts} ({candidate.objections[0].source})")
    widest = max(shown or ranked, key=_promise)
    options = nearest(widest.objections)
    place = "" if "--partition" in options else f" --partition {widest.partition.name}"
    return UsageError(f"no partition of {machine.title} takes this:{''.join(lines)}", hint=f"nearest: {options}{place}")


def nearest(found: Sequence[Objection]) -> str:
    """Return options that would fit: each option once, the number of devices before what follows from it."""
    options: dict[str, str] = {}
    for objection in found:
        options.setdefault(objection.nearest.partition(" ")[0], objection.nearest)
    if "--gpus" in options or "--nodes" in options:
        options.pop("--cores-per-gpu", None)
    return " ".join(options.values())


def _promise(candidate: Candidate) -> tuple[bool, int, int, int]:
    """How near a partition comes: open to all, few limits broken, wide or, where time alone is too much, long."""
    is_time = candidate.objections[0].nearest.startswith("--time")
    longest = (candidate.partition.max_minutes or 0) if is_time else 0
    return candidate.partition.purpose == "batch", -len(candidate.objections), longest, _reach(candidate)


def _reach(candidate: Candidate) -> int:
    return candidate.partition.max_devices or (candidate.partition.max_nodes or 0) * (candidate.kind.num_devices or 1)


def why_not(name: str, chosen: Candidate, judged: list[Candidate], machine: Machine) -> str:
    """Say what speaks against a partition."""
    found = [candidate for candidate in judged if candidate.partition.name == name]
    if not found:
        raise unknown_partition(name, machine)
    other = found[0]
    if other.objections:
        return "; ".join(f"{objection} ({objection.source})" for objection in other.objections)
    if other is chosen:
        return "nothing: it is the one that was chosen"
    if other.weight[0] > chosen.weight[0]:
        unit = chosen.unit or "devices"
        return (
            f"it fits, and takes {number(other.weight[0])} {unit} "
            f"where {chosen.partition.name} takes {number(chosen.weight[0])}"
        )
    why = chosen.partition.preferred_because
    return f"it fits and costs the same; {chosen.partition.name} is preferred" + (f": {why}" if why else "")


def number(value: float) -> str:
    """Write an amount with two digits at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
