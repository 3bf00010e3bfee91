"""Turn the facts of a machine into what a private cluster's configuration says.

Slurm itself (EnforcePartLimits=ALL) refuses at submission: too long, too many or too few nodes
(MaxTime, MaxNodes, MinNodes), too many cores or too much memory on one node (MaxCPUsPerNode,
MaxMemPerNode), and more cores, memory or devices than a node has; it allocates whole nodes
(OverSubscribe=EXCLUSIVE) and gives memory by device (DefMemPerGPU).

On the real machines partition QOS refuse the rest, which needs an accounting database. Here a job_submit
script (`submit.lua`) stands in, with Slurm's own error codes: no account or QOS where the machine
demands one, the fewest and most devices of a job, the most devices of a job on one node, the most cores of
a job, the most jobs of a user. It counts what the job asks for, and whole nodes where it gets them;
jobs that a user submits within one second may slip through, because Slurm shows it the queue no more often.

A row with a QOS is no partition of its own: all rows of one partition make that partition, with the widest of their
limits, and the script refuses what the job's QOS does not allow. Where jobs name no partition, the rows make one that
is the default. A job with another QOS is judged by the row without one.

Not imitated: how many jobs of a user run at once (the others would wait), billing, and conditions that a
person must meet. Which account or QOS is named does not matter. `--test-only` knows no start for a job that
needs more than the live nodes ("Requested node configuration is not available"), while sbatch takes it.

Where a machine's facts are unknown a node has 64 cores, 480 GiB and, unless it has no vendor, 8 devices,
and there are as many nodes as the largest job may have, or only the live ones. The first partition is the
default one; a job without a time gets an hour, and one without memory gets the share of its cores, unless
memory follows the devices or the node is whole. A partition that was closed before its machine is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import ClusterError
from .site import FIRST_NODE, NodeKind, Site

if TYPE_CHECKING:  # the guard of a cluster needs no echelon
    from echelon.machines.machine import Machine, NodeType, Partition

MAX_LIVE_NODES = 16
DEFAULT_MINUTES = 60
NO_NAME = "unnamed"
UNKNOWN_CORES = 64
UNKNOWN_MEMORY_MIB = 480 * 1024
UNKNOWN_DEVICES = 8
SCRIPT = Path(__file__).with_name("submit.lua")


def site_of(machine: Machine, *, partitions: Sequence[str] | None = None, num_live_nodes: int = 4) -> Site:
    """Describe a machine, or the named partitions of it, with some live nodes of each kind."""
    chosen = _chosen(machine, partitions)
    kinds = _kinds(machine, chosen, num_live_nodes)
    names = dict.fromkeys(_slurm_name(partition) for partition in chosen)
    groups = [[row for row in chosen if _slurm_name(row) == name] for name in names]
    lines = [_partition(rows, machine.node_type(rows[0]), [kinds[row.node_type] for row in rows]) for rows in groups]
    return Site(
        name=machine.clusters[0] if machine.clusters else machine.name,
        kinds=tuple(kinds.values()),
        partitions=(f"{lines[0]} Default=YES", *lines[1:]),
        submit_script=_submit_script(machine, chosen, kinds),
    )


def _slurm_name(partition: Partition) -> str:
    return partition.partition_option or NO_NAME


def _chosen(machine: Machine, names: Sequence[str] | None) -> list[Partition]:
    by_name = {partition.name: partition for partition in machine.partitions}
    if names is None:
        chosen = [partition for partition in machine.partitions if not _closed_early(machine, partition)]
    elif unknown := [name for name in names if name not in by_name]:
        raise ClusterError(f"{machine.name} has no partition {unknown[0]}; choose from {', '.join(by_name)}")
    else:
        chosen = [by_name[name] for name in names]
    if not chosen:
        raise ClusterError(f"{machine.name} has no partitions; choose a machine with some")
    return chosen


def _closed_early(machine: Machine, partition: Partition) -> bool:
    if partition.retired_on is None:
        return False
    return machine.retired_on is None or partition.retired_on < machine.retired_on


def _kinds(machine: Machine, partitions: Sequence[Partition], num_live_nodes: int) -> dict[str, NodeKind]:
    used = [kind for kind in machine.node_types if any(kind.name == each.node_type for each in partitions)]
    if not 1 <= num_live_nodes <= MAX_LIVE_NODES // len(used):
        most = MAX_LIVE_NODES // len(used)
        raise ClusterError(
            f"num_live_nodes is {num_live_nodes} for each of {len(used)} kinds of node; choose from 1 to {most}"
        )
    kinds: dict[str, NodeKind] = {}
    first = FIRST_NODE
    for kind in used:
        limits = [each.max_nodes or 0 for each in partitions if each.node_type == kind.name]
        num_nodes = kind.num_nodes or max(num_live_nodes, *limits)
        kinds[kind.name] = _kind(kind, first, num_nodes, min(num_live_nodes, num_nodes))
        first += num_nodes
    return kinds


def _kind(kind: NodeType, first: int, num_nodes: int, num_live_nodes: int) -> NodeKind:
    num_devices = kind.num_devices
    if num_devices is None:
        num_devices = 0 if kind.vendor == "none" else UNKNOWN_DEVICES
    share = (kind.memory_bytes_per_device or 0) * num_devices
    return NodeKind(
        num_live_nodes=num_live_nodes,
        num_nodes=num_nodes,
        first=first,
        num_cores=kind.num_cores or (kind.cores_per_device or 0) * num_devices or UNKNOWN_CORES,
        threads_per_core=kind.threads_per_core or 1,
        reserved_cores=kind.reserved_cores,
        memory_mib=_mib(max(kind.memory_bytes or 0, share)) or UNKNOWN_MEMORY_MIB,
        gres=kind.gres or "gpu",
        num_devices=num_devices,
        vendor=kind.vendor,
        features=kind.features,
    )


def _partition(rows: Sequence[Partition], facts: NodeType, kinds: Sequence[NodeKind]) -> str:
    partition, kind = rows[0], kinds[0]
    most_minutes = _widest([_most_minutes(row) for row in rows])
    most_nodes = _widest([row.max_nodes for row in rows])
    least_nodes = min(row.min_nodes or 1 for row in rows)
    words = [f"PartitionName={_slurm_name(partition)} Nodes={','.join(dict.fromkeys(each.nodes for each in kinds))}"]
    words.append(f"MaxTime={most_minutes or 'UNLIMITED'}")
    words.append(f"DefaultTime={min(DEFAULT_MINUTES, most_minutes or DEFAULT_MINUTES)}")
    if most_nodes:
        words.append(f"MaxNodes={most_nodes}")
    if least_nodes > 1:
        words.append(f"MinNodes={least_nodes}")
    if partition.max_cores_per_node:
        words.append(f"MaxCPUsPerNode={partition.max_cores_per_node * kind.threads_per_core}")
    if partition.max_memory_bytes_per_node:
        words.append(f"MaxMemPerNode={_mib(partition.max_memory_bytes_per_node)}")
    words += _sharing(partition, facts, kind, is_shared=not all(row.whole_nodes for row in rows))
    return " ".join(words)


def _most_minutes(row: Partition) -> int | None:
    """Return the longest time of a row: it may be that of its smallest jobs."""
    return _widest([row.max_minutes, *(limit.max_minutes for limit in row.time_limits)])


def _widest(limits: Sequence[int | None]) -> int | None:
    known = [limit for limit in limits if limit]
    return max(known) if len(known) == len(limits) else None


def _sharing(partition: Partition, facts: NodeType, kind: NodeKind, *, is_shared: bool) -> list[str]:
    if not is_shared:
        return ["OverSubscribe=EXCLUSIVE"]
    if facts.memory_follows_devices and kind.num_devices:
        share = facts.memory_bytes_per_device
        return [f"DefMemPerGPU={_mib(share) if share else kind.memory_mib // kind.num_devices}"]
    return [f"DefMemPerCPU={kind.memory_mib // (kind.num_cores * kind.threads_per_core)}"]


def _submit_script(machine: Machine, partitions: Sequence[Partition], kinds: dict[str, NodeKind]) -> str:
    names = [_slurm_name(partition) for partition in partitions]
    rows = [
        _limits(partition, kinds[partition.node_type], is_alone=names.count(_slurm_name(partition)) == 1)
        for partition in partitions
    ]
    head = [
        f"local account_required = {_lua(machine.account == 'required')}",
        f"local qos_required = {_lua(machine.qos == 'required')}",
        f'local default_partition = "{_slurm_name(partitions[0])}"',
        "local partitions = {",
        *rows,
        "}",
    ]
    return "\n".join([*head, "", SCRIPT.read_text()])


def _limits(partition: Partition, kind: NodeKind, *, is_alone: bool) -> str:
    limits = {
        # the partition itself has the limits of its only row
        "min_nodes": None if is_alone else partition.min_nodes,
        "max_nodes": None if is_alone else partition.max_nodes,
        "max_minutes": None if is_alone and not partition.time_limits else partition.max_minutes,
        "whole_nodes": partition.whole_nodes,
        "node_devices": kind.num_devices,
        "node_cores": kind.num_cores - len(kind.reserved_cores),
        "threads_per_core": kind.threads_per_core,
        "min_devices": partition.min_devices,
        "max_devices": partition.max_devices,
        "max_devices_per_node": partition.max_devices_per_node,
        "max_cores": partition.max_cores,
        "max_jobs": partition.max_jobs,
    }
    words = [f"{name} = {_lua(value)}" for name, value in limits.items() if value is not None]
    words += [f"{{ {limit.max_nodes}, {limit.max_minutes} }}" for limit in partition.time_limits]
    return f'  ["{_slurm_name(partition)}/{partition.qos}"] = {{ {", ".join(words)} }},'


def _lua(value: bool | int) -> str:
    return str(value).lower()


def _mib(num_bytes: int) -> int:
    return num_bytes >> 20
