"""Rules about the request of a batch script and the limits of machine and partition."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from echelon import units
from echelon.errors import UsageError
from echelon.lint.batch import BatchOption
from echelon.lint.finding import Hit, Rule, hit, judged
from echelon.lint.job import JobScript
from echelon.machines.machine import Partition
from echelon.plan.shape import usable_cores
from echelon.units import counted

LEAST_SECONDS = 300
"""Of a limit that is meant as minutes and seconds."""


def unknown_partition(job: JobScript) -> Iterator[Hit]:
    """Find a partition that the machine does not have."""
    option, machine = job.option("partition"), job.machine
    if option is None or machine is None or job.partition or not option.value.isascii():
        return
    if not machine.complete:
        return  # the partition may be one of those without a row
    is_without = option.value in machine.partitions_without_devices
    if any(char in option.value for char in "<{$,") or (is_without and not job.wants_devices):
        return
    if not (is_without or job.wants_devices or machine.partitions_without_devices):
        return  # partitions without devices are not known
    known = [row.name for row in machine.partitions if row.retired_on is None]
    near = difflib.get_close_matches(option.value, known, n=1, cutoff=0.5) or known[:1]
    message = f"{machine.title} has no partition for devices {option.value!r}; it has {', '.join(known)}"
    yield hit(option, message, f"--partition={near[0]}" if near else "")


def retired_partition(job: JobScript) -> Iterator[Hit]:
    """Find a partition that was closed."""
    option, row = job.option("partition"), job.partition
    if option and row and row.retired_on and row.retired_on <= job.today and job.machine:
        others = [each.name for each in job.machine.partitions if each.retired_on is None and each.purpose == "batch"]
        message = f"partition {row.name} was closed on {row.retired_on}; there are {', '.join(others)}"
        yield hit(option, message, f"--partition={others[0]}" if others else "")


def retired_machine(job: JobScript) -> Iterator[Hit]:
    """Find a machine that was shut down."""
    machine = job.machine
    if machine is None or machine.retired_on is None or machine.retired_on > job.today or not job.is_batch:
        return
    option = job.option("partition") or job.header.options[0]
    after = f"; its successor is {machine.successor}" if machine.successor else ""
    repair = f"echelon plan --machine {machine.successor} --gpus N" if machine.successor else ""
    yield hit(option, f"{machine.title} was shut down on {machine.retired_on}{after}", repair)


def seconds(job: JobScript) -> Iterator[Hit]:
    """Find a time limit that Slurm reads as minutes and seconds, where hours and minutes are likely."""
    option = job.option("time")
    match = re.fullmatch(r"(\d{1,2}):(\d{2})", option.value) if option is not None else None
    limit = int(match[1]) * 60 + int(match[2]) if match is not None else 0
    if option is None or not 0 < limit < LEAST_SECONDS:
        return
    told = counted(limit, "second") if limit % 60 else counted(limit // 60, "minute")
    message = f"--time={option.value} is {told}: Slurm reads two numbers as minutes and seconds"
    yield hit(option, message, f"--time={option.value}:00")


def too_long(job: JobScript) -> Iterator[Hit]:
    """Find more time than the partition allows."""
    option, row = job.option("time"), job.partition
    row = row or _most(job, "max_minutes")
    if option is None or row is None or row.max_minutes is None:
        return
    try:
        asked = units.minutes(option.value)
    except UsageError:
        return
    if asked > row.max_minutes:
        most = units.slurm_time(row.max_minutes)
        message = f"the job asks for {units.slurm_time(asked)}, but {row.name} gives at most {most}"
        yield judged(hit(option, message, f"--time={most}"), is_certain=bool(job.partition) or _has_all(job))


def _has_all(job: JobScript) -> bool:
    return job.machine is not None and job.machine.complete


def _most(job: JobScript, limit: str) -> Partition | None:
    """Return the partition with the highest limit if the job names none; None if a limit is unpublished."""
    rows = [row for row in (job.machine.partitions if job.machine else ()) if row.retired_on is None]
    limits = [getattr(row, limit) for row in rows]
    if job.option("partition") or not rows or None in limits:
        return None
    return max(rows, key=lambda row: getattr(row, limit) or 0)


def too_many_nodes(job: JobScript) -> Iterator[Hit]:
    """Find more or fewer nodes than the partition allows for one job."""
    row = job.partition
    option = job.option("nodes") or job.option("partition")
    if row is None or option is None:
        return
    if row.max_nodes is not None and job.num_nodes > row.max_nodes:
        message = f"the job asks for {_nodes(job)}, but {row.name} gives a job at most {row.max_nodes}"
        yield hit(option, message, f"--nodes={row.max_nodes}")
    elif row.min_nodes is not None and job.num_nodes < row.min_nodes:
        message = f"the job asks for {_nodes(job)}, but {row.name} needs at least {row.min_nodes}"
        yield judged(hit(option, message, f"--nodes={row.min_nodes}"), is_certain=job.has_known_nodes)


def _nodes(job: JobScript) -> str:
    return counted(job.num_nodes, "node")


def devices(job: JobScript) -> Iterator[Hit]:
    """Find more devices than a node or the partition has, or too few for the partition."""
    row, kind = job.partition, job.kind
    option = next(
        filter(None, map(job.option, ("gpus-per-node", "gres", "gpus", "gpus-per-task", "ntasks-per-gpu"))), None
    )
    if option is not None and row is None and job.machine is not None and not job.option("partition"):
        yield from _devices_of_no_node(job, option)
    if row is None or kind is None or option is None or not job.devices_per_node:
        return
    name, total = option.name, job.devices_per_node * job.num_nodes
    there = min(filter(None, (row.max_devices_per_node, kind.num_devices)), default=0)
    if there and job.devices_per_node > there:
        asked = counted(job.devices_per_node, "device")
        message = f"the job asks for {asked} of each node, but the nodes of {row.name} have {there}"
        prefix = f"{kind.gres}:" if name == "gres" else ""
        repair = f"--{name}={prefix}{there}" if name != "gpus-per-task" else f"--gpus-per-node={there}"
        yield judged(hit(option, message, repair), is_certain=job.has_known_nodes or name in ("gpus-per-node", "gres"))
    elif row.max_devices is not None and total > row.max_devices:
        asked = counted(total, "device")
        yield hit(option, f"the job asks for {asked}, but {row.name} gives a job at most {row.max_devices}")
    elif row.min_devices is not None and total < row.min_devices:
        asked = counted(total, "device")
        yield hit(option, f"the job asks for {asked}, but {row.name} needs at least {row.min_devices}")


def _devices_of_no_node(job: JobScript, option: BatchOption) -> Iterator[Hit]:
    counts = [kind.num_devices for kind in (job.machine.node_types if job.machine else ())]
    most = max((count for count in counts if count), default=0)
    if most and None not in counts and job.devices_per_node > most and job.machine is not None:
        asked = counted(job.devices_per_node, "device")
        message = f"the job asks for {asked} of each node, but {job.machine.title} has at most {most}"
        mistake = hit(option, message, f"--gpus-per-node={most}")
        yield judged(mistake, is_certain=_has_all(job) and job.has_known_nodes)


def cores(job: JobScript) -> Iterator[Hit]:
    """Find more cores than jobs can get of a node."""
    option = job.option("cpus-per-task") or job.option("cpus-per-gpu")
    there = usable_cores(job.kind) if job.kind else None
    if option is None or job.kind is None or not there:
        return
    threads = job.kind.threads_per_core if job.value("hint") == "multithread" else 1
    usable = there * (threads or 1)
    if job.cores_per_node > usable:
        reserved = len(job.kind.reserved_cores)
        why = f" ({reserved} of {job.kind.num_cores} are reserved)" if reserved else ""
        parts = (job.tasks_per_node or 1) if option.name == "cpus-per-task" else job.devices_per_node
        product = f"{parts} × {job.number(option.value)} = " if parts > 1 else ""
        asked = counted(job.cores_per_node, "core")
        message = f"the job asks for {product}{asked} of a node, but jobs can use {usable}{why}"
        mistake = hit(option, message, f"--{option.name}={max(1, usable // parts)}")
        yield judged(mistake, is_certain=job.has_known_nodes or job.asked("ntasks") < 2)


def memory(job: JobScript) -> Iterator[Hit]:
    """Find more memory than jobs can get of a node."""
    option, there = job.memory_option, job.kind.memory_bytes if job.kind else None
    if option and there and job.memory_bytes_per_node > there:
        asked = units.size(job.memory_bytes_per_node)
        message = f"the job asks for {asked} of a node, but jobs can use {units.size(there)}"
        repair = f"--mem={units.slurm_size(there)}"
        yield hit(option, message, repair, becomes=repair if option.name == "mem" else "")


RULES = (
    Rule(code="ECH101", find=unknown_partition),
    Rule(code="ECH102", find=retired_partition),
    Rule(code="ECH103", find=retired_machine),
    Rule(code="ECH104", find=too_long),
    Rule(code="ECH135", find=seconds),
    Rule(code="ECH105", find=too_many_nodes),
    Rule(code="ECH106", find=devices),
    Rule(code="ECH107", find=cores),
    Rule(code="ECH108", find=memory),
)
