"""Lay out the devices of a request on the nodes of one kind."""

from __future__ import annotations

import math
from dataclasses import dataclass

from echelon.errors import UsageError
from echelon.machines.machine import NodeType, Partition
from echelon.plan.misfit import Alternative, Misfit, way
from echelon.spec import Request
from echelon.units import counted, size

MOST_TIMES_THE_NODES = 2  # equal shares may take up to twice as many nodes as full nodes would


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanShape:
    """Nodes, ranks and their shares; 0 means unpublished."""

    num_nodes: int
    ranks_per_node: int
    devices_per_node: int
    """Booked cores; in a partition of whole nodes, all cores."""
    cores_per_rank: int
    memory_bytes_per_node: int
    why: str

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * self.ranks_per_node

    @property
    def cores_per_node(self) -> int:
        return self.cores_per_rank * self.ranks_per_node


def shape(request: Request, kind: NodeType, partition: Partition) -> PlanShape:
    """Lay out a request; other functions judge whether the partition allows it."""
    num_nodes, ranks, why = _nodes_and_ranks(request, kind, partition)
    is_whole = has_whole_nodes(request, kind, partition, ranks)
    devices = kind.num_devices if is_whole and kind.num_devices else ranks
    return PlanShape(
        num_nodes=num_nodes,
        ranks_per_node=ranks,
        devices_per_node=devices,
        cores_per_rank=_cores_per_rank(request, kind, ranks, is_whole=is_whole),
        memory_bytes_per_node=_memory(request, kind, ranks, is_whole=is_whole),
        why=why,
    )


def has_whole_nodes(request: Request, kind: NodeType, partition: Partition, ranks: int) -> bool:
    """Say whether the job has its nodes alone: by the partition, by request, or because it uses all their devices.

    The last case needs a published core map: whole nodes then pay, because ranks can be bound.
    """
    return partition.whole_nodes or request.whole_nodes or (bool(kind.nearest) and ranks == kind.num_devices)


def usable_cores(kind: NodeType) -> int:
    """Return the cores of a node that jobs can get; 0 if unpublished."""
    return kind.num_cores - len(kind.reserved_cores) if kind.num_cores else 0


def _nodes_and_ranks(request: Request, kind: NodeType, partition: Partition) -> tuple[int, int, str]:
    there = kind.num_devices or 0
    if partition.max_devices_per_node:
        there = min(there or partition.max_devices_per_node, partition.max_devices_per_node)
    wanted = request.num_devices
    if not wanted:
        num_nodes = request.num_nodes or 1
        if not there:
            raise Misfit(
                f"the number of GPUs of a node of {partition.name} is not published: add --gpus",
                ways=tuple(way(num_devices=each * num_nodes, num_nodes=num_nodes) for each in (2, 1)),
            )
        return num_nodes, there, f"{counted(num_nodes, 'whole node')} of {counted(there, 'device')}"
    if request.num_nodes:
        if wanted % request.num_nodes:
            raise _uneven(wanted, request.num_nodes)
        ranks = wanted // request.num_nodes
        return request.num_nodes, ranks, f"as asked: {request.num_nodes}, {counted(ranks, 'device')} on each"
    if not there:
        return 1, wanted, "the number of devices of a node is not published, so the job asks for one node"
    num_nodes, fewest = _nodes_for(wanted, there), math.ceil(wanted / there)
    ranks = wanted // num_nodes
    if num_nodes > MOST_TIMES_THE_NODES * fewest:
        raise _wasteful(wanted, there)
    words = "the fewest nodes" if num_nodes == fewest else "the fewest nodes with equal shares"
    return num_nodes, ranks, f"{words} that hold {counted(wanted, 'device')}: a node has {there}"


def _nodes_for(wanted: int, there: int) -> int:
    """Return the fewest nodes on which this number of devices can be placed equally."""
    return next(n for n in range(math.ceil(wanted / there), wanted + 1) if wanted % n == 0)


def _wasteful(wanted: int, there: int) -> Misfit:
    """Return the error for a number of devices, such as a prime, that would leave most of each node unused."""
    below = next((number for number in range(wanted - 1, 0, -1) if _is_compact(number, there)), 0)
    above = next(number for number in range(wanted + 1, 2 * wanted + there) if _is_compact(number, there))
    num_nodes = _nodes_for(wanted, there)
    return Misfit(
        f"{wanted} devices fit equally on nodes of {there} only with {num_nodes} nodes, "
        f"{counted(wanted // num_nodes, 'device')} on each",
        ways=(*_numbers(below, above), way("if you want that", num_nodes=num_nodes)),
        num_shown=3,
    )


def _numbers(*numbers: int) -> tuple[Alternative, ...]:
    return tuple(way(num_devices=number) for number in numbers if number)


def _is_compact(number: int, there: int) -> bool:
    return _nodes_for(number, there) == math.ceil(number / there)


def _uneven(wanted: int, num_nodes: int) -> Misfit:
    below, above = wanted - wanted % num_nodes, wanted + num_nodes - wanted % num_nodes
    message = f"{num_nodes} nodes cannot share {wanted} devices equally"
    fewer = next(number for number in range(min(wanted, num_nodes), 0, -1) if wanted % number == 0)
    return Misfit(message, ways=(*_numbers(below, above), way(num_nodes=fewer)), num_shown=2)


def _cores_per_rank(request: Request, kind: NodeType, ranks: int, *, is_whole: bool) -> int:
    if request.cores_per_device:
        return request.cores_per_device
    if request.cpus_per_rank:
        return math.ceil(request.cpus_per_rank / (kind.threads_per_core or 1))
    if is_whole and usable_cores(kind):
        return usable_cores(kind) // ranks
    return kind.cores_per_device or 0


def _memory(request: Request, kind: NodeType, ranks: int, *, is_whole: bool) -> int:
    if request.memory_bytes_per_node:
        return request.memory_bytes_per_node
    if request.memory_bytes_per_device:
        return request.memory_bytes_per_device * ranks
    if kind.memory_follows_devices:
        return 0
    if is_whole and kind.memory_bytes:
        return kind.memory_bytes
    return fair_memory(kind) * ranks


def fair_memory(kind: NodeType) -> int:
    """Return a device's share of memory, published or computed from the node's; 0 if unknown."""
    if kind.memory_bytes_per_device or not (kind.memory_bytes and kind.num_devices):
        return kind.memory_bytes_per_device or 0
    return kind.memory_bytes // kind.num_devices >> 30 << 30  # whole gibibytes


def why_cores(request: Request, kind: NodeType, laid: PlanShape, *, is_whole: bool) -> str:
    """Say where the number of cores of a rank comes from."""
    if request.cores_per_device:
        return "as asked"
    if request.cpus_per_rank:
        threads = kind.threads_per_core or 1
        return "as asked" if threads == 1 else f"as asked: {request.cpus_per_rank} CPUs, {threads} of each core"
    if is_whole and usable_cores(kind):
        reserved = f", {len(kind.reserved_cores)} of {kind.num_cores} are reserved" if kind.reserved_cores else ""
        return (
            f"the job has the whole node: {counted(usable_cores(kind), 'usable core')} for "
            f"{counted(laid.ranks_per_node, 'rank')}{reserved}"
        )
    return "the fair share of a device" if kind.cores_per_device else "not published: Slurm's default"


def why_memory(request: Request, kind: NodeType, laid: PlanShape, *, is_whole: bool) -> str:
    if kind.memory_follows_devices:
        amount = f"{size(kind.memory_bytes_per_device)} " if kind.memory_bytes_per_device else ""
        return f"left out: Slurm gives {amount}with each device here"
    if request.memory_bytes_per_node:
        return "as asked"
    if request.memory_bytes_per_device:
        return f"{size(request.memory_bytes_per_device)} for each device, as asked"
    if is_whole and kind.memory_bytes:
        return "all memory of a node that jobs can use"
    if fair_memory(kind):
        return f"the fair share of a device, {size(fair_memory(kind))}, times {laid.ranks_per_node}"
    return "not published: Slurm's default"


def batch_variables(batch: int, share: int) -> tuple[tuple[str, str], ...]:
    """Return variables with the global batch and a rank's share; none without a global batch."""
    return (("ECHELON_GLOBAL_BATCH", str(batch)), ("ECHELON_BATCH_PER_RANK", str(share))) if batch else ()


def refuse_uneven_shards(num_shards: int, num_ranks: int) -> None:
    """Raise UsageError if the ranks cannot have equal numbers of the virtual shards of `--exact`; 0: there are none."""
    if not num_shards or num_shards % num_ranks == 0:
        return
    valid = [str(1 << power) for power in range(num_shards.bit_length())]
    raise UsageError(
        f"--exact {num_shards} needs {', '.join(valid[:-1])} or {valid[-1]} ranks, but the run has {num_ranks}",
        hint=f"echelon run -n {1 << (min(num_ranks, num_shards).bit_length() - 1)} --exact {num_shards} …",
    )


def share_of_batch(batch: int, num_ranks: int) -> int:
    """Return the samples of one rank; raise Misfit with the nearest valid batches if they cannot be equal."""
    if batch % num_ranks:
        below, above = batch - batch % num_ranks, batch + num_ranks - batch % num_ranks
        ways = tuple(way(global_batch=number) for number in (below, above) if number)
        near = " or ".join(f"--global-batch {number}" for number in (below, above) if number)
        message = f"{num_ranks} ranks cannot share a global batch of {batch} equally"
        raise Misfit(message, ways=ways, num_shown=2, hint=near)
    return batch // num_ranks
