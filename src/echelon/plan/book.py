"""Resolve a request on a machine: a pure function of the request, the machine and the day."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from functools import partial

from echelon import units
from echelon.errors import UsageError
from echelon.machines.machine import Machine, Partition
from echelon.plan import offers, site
from echelon.plan.candidates import PartitionCandidate, as_devices, candidates, choose, product
from echelon.plan.misfit import Alternative, Misfit, way
from echelon.plan.shape import fair_memory, has_whole_nodes, share_of_batch, why_cores, why_memory
from echelon.spec import Booking, Reason, Request
from echelon.units import amount, cost, size, slurm_time


def book(
    request: Request,
    machine: Machine,
    *,
    today: date,
    rocm: str = "",
    even_if_retired: bool = False,
    successor: Machine | None = None,
) -> Booking:
    """Decide the options for Slurm; raise UsageError if the machine would refuse them, with an accepted alternative.

    `rocm` is the ROCm version of the ranks' PyTorch; empty: unknown, or none. `successor` is the machine that replaced
    a retired one.
    """
    if not even_if_retired:
        _refuse_retired(request, machine, successor, today)
    try:
        return _booked(request, machine, today=today, rocm=rocm)
    except Misfit as misfit:
        judge = partial(_booked, machine=machine, today=today)
        hint = offers.hint(misfit, request, judge)
        raise UsageError(misfit.message, hint=hint, details=misfit.details) from None


def _booked(request: Request, machine: Machine, *, today: date, rocm: str = "") -> Booking:
    if not machine.partitions:
        raise UsageError(
            f"echelon knows no partitions of {machine.title}, so it cannot plan a job there",
            hint="echelon run SCRIPT starts here; for another machine: --machine NAME (echelon machines lists the "
            "names)",
        )
    if not (request.num_devices or request.num_nodes or request.devices_per_node):
        ways = (way(num_devices=8), way(num_devices=4), way(num_devices=1), way("whole nodes", num_nodes=1))
        raise Misfit("--gpus or --nodes is required", ways=ways, num_shown=2)
    judged = candidates(request, machine, today)
    chosen = choose(request, machine, judged)
    kind, laid = chosen.kind, chosen.laid
    is_whole = has_whole_nodes(request, kind, chosen.partition, laid.ranks_per_node)
    variables = site.variables_of_job(machine, kind, num_nodes=laid.num_nodes, rocm=rocm)
    return Booking(
        machine=machine.name,
        title=machine.title,
        partition=chosen.partition.name,
        partition_option=chosen.partition.partition_option,
        constraint=chosen.partition.constraint,
        num_nodes=laid.num_nodes,
        ranks_per_node=laid.ranks_per_node,
        devices_per_node=laid.devices_per_node,
        whole_nodes=is_whole,
        exclusive=is_whole and not chosen.partition.whole_nodes,
        cores_per_rank=laid.cores_per_rank,
        threads_per_core=kind.threads_per_core or 1,
        memory_bytes_per_node=0 if kind.memory_follows_devices else laid.memory_bytes_per_node,
        minutes=request.minutes,
        account=request.account,
        qos=chosen.partition.qos or request.qos,
        reservation=request.reservation,
        gres=kind.gres,
        device_option=machine.device_option,
        core_map=_core_map(chosen, is_whole=is_whole),
        variables=variables,
        batch_per_rank=share_of_batch(request.global_batch, laid.num_ranks),
        billed=chosen.cost,
        billed_unit=chosen.unit,
        billed_because=product(machine, chosen.partition, chosen.charged) if chosen.cost is not None else "",
        reasons=_reasons(request, machine, chosen, is_whole=is_whole),
        notes=of(request, machine, chosen, today),
        warnings=unlisted(machine, chosen.partition),
    )


def refuse_missing_account(booking: Booking, machine: Machine, groups: tuple[str, ...] = ()) -> None:
    """Raise UsageError if the site requires an account or a QOS, and none was given."""
    for option, rule, value in (("--account", machine.account, booking.account), ("--qos", machine.qos, booking.qos)):
        if rule == "required" and not value:
            known = f"; you belong to {', '.join(groups)}" if groups and option == "--account" else ""
            name = (groups or ("NAME",))[0] if option == "--account" else "NAME"
            raise UsageError(
                f"{machine.title} needs the project to bill: {option} is missing{known} ({machine.source})",
                hint=f"{option} {name}",
            )


def _refuse_retired(request: Request, machine: Machine, successor: Machine | None, today: date) -> None:
    if machine.retired_on is None or machine.retired_on > today:
        return
    instead = f"; its successor is {machine.successor}" if machine.successor else ""
    elsewhere = ""
    if successor is not None:
        offer = offers.accepted_request(
            request, Alternative(changes=()), partial(_booked, machine=successor, today=today)
        )
        if offer is not None:
            elsewhere = f"--machine {successor.name} {offers.written(request, offer)}".rstrip() + "   or, "
    read = f"to read its script anyway: echelon submit --machine {machine.name} --plain --dry-run …"
    raise UsageError(
        f"{machine.title} was shut down on {machine.retired_on}{instead} ({machine.source})", hint=elsewhere + read
    )


def _core_map(chosen: PartitionCandidate, *, is_whole: bool) -> tuple[tuple[int, ...], ...]:
    """Return each local rank's cores, if Slurm can bind to them: on whole nodes whose devices are all used."""
    nearest = sorted(chosen.kind.nearest, key=lambda row: row.device)
    if not is_whole or not nearest or len(nearest) != chosen.laid.ranks_per_node:
        return ()
    return tuple(row.cores[: chosen.laid.cores_per_rank] for row in nearest[: chosen.laid.ranks_per_node])


def _reasons(request: Request, machine: Machine, chosen: PartitionCandidate, *, is_whole: bool) -> tuple[Reason, ...]:
    kind, laid, row = chosen.kind, chosen.laid, chosen.partition
    is_asked = laid.memory_bytes_per_node and not kind.memory_follows_devices
    memory = size(laid.memory_bytes_per_node) if is_asked else "Slurm's share"
    cores = str(laid.cores_per_rank) if laid.cores_per_rank else "Slurm's default"
    billed = cost(chosen.cost, chosen.unit) if chosen.cost is not None else "not known"
    return (
        Reason(what="machine", value=machine.title, why=machine.source),
        Reason(what="partition", value=chosen.partition.name, why=_why_partition(request, chosen)),
        *([Reason(what="QOS", value=row.qos, why=row.source)] if row.qos else []),
        *([Reason(what="constraint", value=row.constraint, why=row.source)] if row.constraint else []),
        Reason(what="nodes", value=str(laid.num_nodes), why=laid.why),
        Reason(what="devices per node", value=str(laid.devices_per_node), why=_why_devices(chosen, is_whole=is_whole)),
        Reason(what="ranks per node", value=str(laid.ranks_per_node), why="one per device"),
        Reason(what="cores per rank", value=cores, why=why_cores(request, kind, laid, is_whole=is_whole)),
        Reason(what="memory per node", value=memory, why=why_memory(request, kind, laid, is_whole=is_whole)),
        Reason(what="time", value=slurm_time(request.minutes), why=_why_time(chosen)),
        Reason(what="bill", value=billed, why=_why_bill(machine, chosen)),
        *(
            [Reason(what="condition", value=chosen.partition.condition, why=chosen.partition.source)]
            if chosen.partition.condition
            else []
        ),
    )


def _why_partition(request: Request, chosen: PartitionCandidate) -> str:
    row = chosen.partition
    if request.partition or (request.qos and request.qos == row.qos):
        return f"as asked ({row.source})"
    cheapest = "it bills the least" if chosen.cost is not None else "it uses the fewest devices"
    return f"{cheapest} among those whose limits allow it ({row.source})"


def _why_devices(chosen: PartitionCandidate, *, is_whole: bool) -> str:
    kind, laid = chosen.kind, chosen.laid
    if is_whole and laid.ranks_per_node < laid.devices_per_node:
        return (
            "this partition gives whole nodes: devices that stay idle and are billed: "
            f"{laid.devices_per_node - laid.ranks_per_node}"
        )
    if kind.num_chips and kind.num_devices and kind.num_devices > kind.num_chips:
        devices_per_chip = kind.num_devices // kind.num_chips
        return f"one {kind.chip} is {devices_per_chip} devices"
    return kind.chip or "as asked"


def _why_time(chosen: PartitionCandidate) -> str:
    most = chosen.partition.max_minutes_on(chosen.laid.num_nodes)
    return f"as asked; at most {slurm_time(most)} here" if most else "as asked; the limit is not published"


def _why_bill(machine: Machine, chosen: PartitionCandidate) -> str:
    if chosen.cost is None:
        return "the rule is not published"
    return f"if it runs to its time limit: {product(machine, chosen.partition, chosen.charged)}"


ROUNDING = 1.1  # memory up to 1.1 times the share counts as the share, as in `echelon lint`


def of(request: Request, machine: Machine, chosen: PartitionCandidate, today: date) -> tuple[str, ...]:
    """Return the notes; the most expensive comes first."""
    request = as_devices(request)
    notes = (_cheaper(request, machine, chosen, today), _cores(request, chosen), _memory(request, machine, chosen))
    return tuple(note for note in notes if note)


def unlisted(machine: Machine, row: Partition) -> tuple[str, ...]:
    """Return the warning about a partition that the machine's table does not have."""
    if row in machine.partitions:
        return ()
    names = ", ".join(each.name for each in machine.partitions if each.retired_on is None)
    kind = f"takes its nodes for {row.node_type} and " if row.node_type else ""
    return (
        f"echelon's table of {machine.title} may be incomplete, and does not have {row.name}: echelon {kind}checks no "
        f"limit; the table has {names}",
    )


def _cheaper(request: Request, machine: Machine, chosen: PartitionCandidate, today: date) -> str:
    """Note a larger number of devices that costs less: 70 take 10 nodes of 8, and 72 take 9."""
    per_node, wanted = chosen.kind.num_devices or 0, request.num_devices
    if not per_node or not wanted or wanted % per_node == 0 or chosen.laid.num_nodes == 1:
        return ""
    full = -(-wanted // per_node) * per_node
    more = replace(request, num_devices=full, num_nodes=0, devices_per_node=0, global_batch=0)
    try:
        other = choose(more, machine, candidates(more, machine, today))
    except UsageError:
        return ""
    if other.weight[0] >= chosen.weight[0] or other.unit != chosen.unit:
        return ""
    unit = chosen.unit or "devices taken"
    saved = f"{amount(other.weight[0])} instead of {cost(chosen.weight[0], unit)}"
    nodes = f"{units.counted(other.laid.num_nodes, 'node')} instead of {chosen.laid.num_nodes}"
    return f"{full} GPUs cost less: {saved}, on {nodes}"


def _cores(request: Request, chosen: PartitionCandidate) -> str:
    """Note cores above the share of the devices: they are billed as devices, or taken from others'."""
    kind, laid = chosen.kind, chosen.laid
    share = (kind.cores_per_device or 0) * laid.devices_per_node
    if (
        not (request.cores_per_device or request.cpus_per_rank)
        or not 0 < share < laid.cores_per_node
        or _takes_all(chosen)
    ):
        return ""
    return (
        f"{units.counted(laid.cores_per_node, 'core')} for {_some(chosen)}, but their share is {share}{_billed(chosen)}"
    )


def _memory(request: Request, machine: Machine, chosen: PartitionCandidate) -> str:
    kind, laid = chosen.kind, chosen.laid
    asked = request.memory_bytes_per_device or request.memory_bytes_per_node
    share = fair_memory(kind) * laid.devices_per_node
    if not asked:
        return ""
    if kind.memory_follows_devices:
        share_text = size(fair_memory(kind)) if fair_memory(kind) else "its share"
        option = "--mem" if request.memory_bytes_per_node else "--mem-per-gpu"
        return f"echelon leaves {option} out: on {machine.title} each device brings {share_text} of memory"
    if not 0 < share * ROUNDING < laid.memory_bytes_per_node or _takes_all(chosen):
        return ""
    return f"{size(laid.memory_bytes_per_node)} for {_some(chosen)}, but their share is {size(share)}{_billed(chosen)}"


def _takes_all(chosen: PartitionCandidate) -> bool:
    return chosen.partition.whole_nodes or chosen.laid.devices_per_node == chosen.kind.num_devices


def _some(chosen: PartitionCandidate) -> str:
    there = chosen.kind.num_devices
    return f"{chosen.laid.devices_per_node} of {units.counted(there, 'device') if there else 'the devices'} of a node"


def _billed(chosen: PartitionCandidate) -> str:
    return "" if chosen.cost is None else f" (bill: {cost(chosen.cost, chosen.unit)})"
