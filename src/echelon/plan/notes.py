"""Notes on an accepted booking: cheaper numbers, cores that are billed as devices, memory that is left out."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

from echelon import units
from echelon.errors import UsageError
from echelon.machines.machine import Machine, Partition
from echelon.plan.candidates import Candidate, candidates, choose
from echelon.plan.counting import counted
from echelon.plan.shape import fair_memory
from echelon.spec import Request
from echelon.units import amount, cost, size

ROUNDING = 1.1  # memory up to 1.1 times the share counts as the share, as in `echelon lint`


def of(request: Request, machine: Machine, chosen: Candidate, today: date) -> tuple[str, ...]:
    """Return the notes; the most expensive comes first."""
    request = counted(request)
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


def _cheaper(request: Request, machine: Machine, chosen: Candidate, today: date) -> str:
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


def _cores(request: Request, chosen: Candidate) -> str:
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


def _memory(request: Request, machine: Machine, chosen: Candidate) -> str:
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


def _takes_all(chosen: Candidate) -> bool:
    return chosen.partition.whole_nodes or chosen.laid.devices_per_node == chosen.kind.num_devices


def _some(chosen: Candidate) -> str:
    there = chosen.kind.num_devices
    return f"{chosen.laid.devices_per_node} of {units.counted(there, 'device') if there else 'the devices'} of a node"


def _billed(chosen: Candidate) -> str:
    return "" if chosen.cost is None else f" (bill: {cost(chosen.cost, chosen.unit)})"
