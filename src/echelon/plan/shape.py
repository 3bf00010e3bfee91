"""How the devices of a request lie on the nodes of one kind."""

from __future__ import annotations

import math
from dataclasses import dataclass

from echelon.errors import UsageError
from echelon.machines.machine import NodeType, Partition
from echelon.spec import Request
from echelon.units import size

MOST_TIMES_THE_NODES = 2  # equal shares may take up to twice the nodes that the devices would fill


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Nodes, ranks and their shares; 0 stands for what is not published."""

    num_nodes: int
    ranks_per_node: int
    devices_per_node: int
    """Booked; in a partition of whole nodes, all of them."""
    cores_per_rank: int
    memory_bytes_per_node: int
    why: str

    @property
    def num_ranks(self) -> int:
        return self.num_nodes * self.ranks_per_node

    @property
    def cores_per_node(self) -> int:
        return self.cores_per_rank * self.ranks_per_node


def shape(request: Request, kind: NodeType, partition: Partition) -> Shape:
    """Lay a request out; whether the partition allows it is judged elsewhere."""
    num_nodes, ranks, why = _nodes_and_ranks(request, kind, partition)
    is_whole = has_whole_nodes(request, kind, partition, ranks)
    devices = kind.num_devices if is_whole and kind.num_devices else ranks
    return Shape(
        num_nodes=num_nodes,
        ranks_per_node=ranks,
        devices_per_node=devices,
        cores_per_rank=_cores_per_rank(request, kind, ranks, is_whole=is_whole),
        memory_bytes_per_node=_memory(request, kind, ranks, is_whole=is_whole),
        why=why,
    )


def has_whole_nodes(request: Request, kind: NodeType, partition: Partition, ranks: int) -> bool:
    """Say whether nodes are this job's alone: by the partition, as asked, or because it takes all their devices.

    The last only where the map of cores is published: then the whole node is worth having, for ranks can be bound.
    """
    return partition.whole_nodes or request.whole_nodes or (bool(kind.nearest) and ranks == kind.num_devices)


def usable_cores(kind: NodeType) -> int:
    """Return the cores of a node that jobs can get; 0 where that is not published."""
    return kind.num_cores - len(kind.reserved_cores) if kind.num_cores else 0


def _nodes_and_ranks(request: Request, kind: NodeType, partition: Partition) -> tuple[int, int, str]:
    there = kind.num_devices or 0
    if partition.max_devices_per_node:
        there = min(there or partition.max_devices_per_node, partition.max_devices_per_node)
    wanted = request.num_devices
    if not wanted:
        num_nodes = request.num_nodes or 1
        if not there:
            raise UsageError(
                f"how many devices a node of {partition.name} has is not published, so a number is wanted",
                hint=f"--gpus {2 * num_nodes} --nodes {num_nodes} --partition {partition.name}",
            )
        return num_nodes, there, f"{_count(num_nodes, 'whole node')} of {_count(there, 'device')}"
    if request.num_nodes:
        if wanted % request.num_nodes:
            raise _uneven(wanted, request.num_nodes)
        ranks = wanted // request.num_nodes
        return request.num_nodes, ranks, f"{request.num_nodes} were asked for, {_count(ranks, 'device')} on each"
    if not there:
        return 1, wanted, "how many devices a node has is not published, so one node is asked for"
    num_nodes, fewest = _nodes_for(wanted, there), math.ceil(wanted / there)
    ranks = wanted // num_nodes
    if num_nodes > MOST_TIMES_THE_NODES * fewest:
        raise _wasteful(wanted, there)
    words = "the fewest nodes" if num_nodes == fewest else "the fewest nodes with equal shares"
    return num_nodes, ranks, f"{words} that hold {_count(wanted, 'device')}: a node has {there}"


def _nodes_for(wanted: int, there: int) -> int:
    """Return the fewest nodes on which so many devices lie equally."""
    return next(n for n in range(math.ceil(wanted / there), wanted + 1) if wanted % n == 0)


def _wasteful(wanted: int, there: int) -> UsageError:
    """A prime number of devices would lie one on each node, and a whole node may be billed for it."""
    steps = range(1, wanted)
    good = [number for step in steps for number in (wanted - step, wanted + step) if _is_compact(number, there)]
    near = sorted(good[:2])
    return UsageError(
        f"{wanted} devices lie equally on nodes of {there} only if {_nodes_for(wanted, there)} nodes are taken, "
        f"with {_count(wanted // _nodes_for(wanted, there), 'device')} on each",
        hint=f"{' or '.join(f'--gpus {number}' for number in near)}   "
        f"or, if that is meant: --gpus {wanted} --nodes {_nodes_for(wanted, there)}",
    )


def _is_compact(number: int, there: int) -> bool:
    return _nodes_for(number, there) == math.ceil(number / there)


def _uneven(wanted: int, num_nodes: int) -> UsageError:
    below, above = wanted - wanted % num_nodes, wanted + num_nodes - wanted % num_nodes
    near = " or ".join(f"--gpus {number}" for number in (below, above) if number)
    return UsageError(
        f"{wanted} devices cannot be shared equally by {num_nodes} nodes", hint=f"--nodes {num_nodes} with {near}"
    )


def _cores_per_rank(request: Request, kind: NodeType, ranks: int, *, is_whole: bool) -> int:
    if request.cores_per_device:
        return request.cores_per_device
    if is_whole and usable_cores(kind):
        return usable_cores(kind) // ranks
    return kind.cores_per_device or 0


def _memory(request: Request, kind: NodeType, ranks: int, *, is_whole: bool) -> int:
    if request.memory_bytes_per_device:
        return request.memory_bytes_per_device * ranks
    if kind.memory_follows_devices:
        return 0
    if is_whole and kind.memory_bytes:
        return kind.memory_bytes
    return _fair_memory(kind) * ranks


def _fair_memory(kind: NodeType) -> int:
    """Return a device's share: as published, or of what jobs can get of a node; 0 where neither is known."""
    if kind.memory_bytes_per_device or not (kind.memory_bytes and kind.num_devices):
        return kind.memory_bytes_per_device or 0
    return kind.memory_bytes // kind.num_devices >> 30 << 30  # whole gibibytes


def why_cores(request: Request, kind: NodeType, laid: Shape, *, is_whole: bool) -> str:
    """Say where the number of cores of a rank comes from."""
    if request.cores_per_device:
        return "as asked"
    if is_whole and usable_cores(kind):
        reserved = f", {len(kind.reserved_cores)} of {kind.num_cores} being reserved" if kind.reserved_cores else ""
        return (
            f"the node is ours: {usable_cores(kind)} usable cores for {_count(laid.ranks_per_node, 'rank')}{reserved}"
        )
    return "the fair share of a device" if kind.cores_per_device else "not published: Slurm's default"


def why_memory(request: Request, kind: NodeType, laid: Shape, *, is_whole: bool) -> str:
    """Say where the memory of a node comes from."""
    if request.memory_bytes_per_device:
        return f"{size(request.memory_bytes_per_device)} for each device, as asked"
    if kind.memory_follows_devices:
        each = f"{size(kind.memory_bytes_per_device)} " if kind.memory_bytes_per_device else ""
        return f"not asked for: Slurm gives {each}with each device here"
    if is_whole and kind.memory_bytes:
        return "all that jobs can get of a node"
    if _fair_memory(kind):
        return f"the fair share of a device, {size(_fair_memory(kind))}, times {laid.ranks_per_node}"
    return "not published: Slurm's default"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
