"""Rules about cores and memory against the share of the devices: too little starves them, too much is billed."""

from __future__ import annotations

from collections.abc import Iterator

from echelon import units
from echelon.lint.batch import BatchOption
from echelon.lint.finding import Edit, Hit, Rule, hit
from echelon.lint.job import JobScript
from echelon.units import counted

STARVED = 0.5
"""LUMI's slides and CSC's guide give the whole share of cores; below half of it, loaders wait for cores."""
ENOUGH = 8
"""The cores that feed one device: LUMI gives 7. A job with part of a node's devices leaves more to the others."""
SHORT = 0.7
"""The least share of memory: CSC's guide raised a value of 0.69 (64G for 2 of Puhti's GPUs) in 584afdadd."""


def no_devices(job: JobScript) -> Iterator[Hit]:
    """Find a request without devices in a partition of devices."""
    kind, option = job.kind, job.option("partition")
    asked = ("gpus", "gpus-per-node", "gres", "gpus-per-task", "gpus-per-socket", "tres-per-task")
    if kind is None or option is None or job.machine is None or kind.vendor in ("none", "unknown"):
        return
    if any(job.option(name) for name in asked):
        return
    count = kind.num_devices or 1
    repair = f"--gres={kind.gres}:{count}" if job.machine.device_option == "--gres" else f"--gpus-per-node={count}"
    yield hit(
        option, f"the job asks for no device, but {option.value} has nodes of {kind.chip}: the job sees none", repair
    )


def few_cores(job: JobScript) -> Iterator[Hit]:
    """Find far fewer cores than the share of the devices."""
    option = job.option("cpus-per-task") or job.option("cpus-per-gpu")
    share = job.kind.cores_per_device if job.kind else None
    if not share or not job.devices_per_node or not job.is_batch:
        return
    wanted, parts = share * job.devices_per_node, job.tasks_per_node or 1
    asked = job.cores_per_node or parts
    least = STARVED * share if job.takes_all_devices else min(STARVED * share, ENOUGH)
    if asked < least * job.devices_per_node and (option or job.partition):
        per_task = option is None or option.name == "cpus-per-task"
        repair = f"--cpus-per-task={wanted // parts}" if per_task else f"--cpus-per-gpu={share}"
        message = f"{counted(asked, 'core')} for {_devices(job)}, but the share is {wanted} ({share} each)"
        place = option or job.option("partition")
        if place is not None and (not job.has_whole_nodes or _are_steps_bound(job)):
            yield hit(place, message, repair)


def _are_steps_bound(job: JobScript) -> bool:
    """Say whether srun gives tasks a number of cores; otherwise they have all cores of a whole node."""
    return any(start.option("cpus-per-task", "c") is not None for start in job.started("srun"))


def over_share(job: JobScript) -> Iterator[Hit]:
    """Find more cores or memory than the share of the devices: it is billed, or taken from others' devices."""
    kind = job.kind
    if kind is None or not job.devices_per_node or job.takes_all_devices or not kind.num_devices:
        return
    option = job.option("cpus-per-task") or job.option("cpus-per-gpu")
    share = kind.cores_per_device
    if option and share and job.cores_per_node > share * job.devices_per_node:
        fair = share * job.devices_per_node
        parts = (job.tasks_per_node or 1) if option.name == "cpus-per-task" else job.devices_per_node
        message = f"{counted(job.cores_per_node, 'core')} for {_part(job)}, but the share is {fair}"
        yield hit(option, message, f"--{option.name}={max(1, fair // parts)}")
    memory, share_bytes = job.memory_option, kind.memory_bytes_per_device
    if memory and share_bytes and job.memory_bytes_per_node > share_bytes * job.devices_per_node * 1.1:
        fair_bytes = share_bytes * job.devices_per_node
        message = f"{units.size(job.memory_bytes_per_node)} for {_part(job)}, but the share is {units.size(fair_bytes)}"
        yield hit(memory, message, f"--mem={units.slurm_size(fair_bytes)}")


def _devices(job: JobScript) -> str:
    return counted(job.devices_per_node, "device")


def _part(job: JobScript) -> str:
    there = job.kind.num_devices if job.kind else None
    return f"{job.devices_per_node} of {counted(there, 'device')}" if there else _devices(job)


def little_memory(job: JobScript) -> Iterator[Hit]:
    """Find much less memory than the share of the devices."""
    option, share_bytes = job.memory_option, job.kind.memory_bytes_per_device if job.kind else None
    if option is None or not share_bytes or job.devices_per_node < 2 or not job.memory_bytes_per_node:
        return
    fair = share_bytes * job.devices_per_node
    if job.memory_bytes_per_node < SHORT * fair and not (job.kind and job.kind.memory_follows_devices):
        asked = units.size(job.memory_bytes_per_node)
        message = f"{asked} for {_devices(job)}, but their share of a node is {units.size(fair)}"
        yield hit(option, message, f"--mem={units.slurm_size(fair)}")


def all_memory(job: JobScript) -> Iterator[Hit]:
    """Find --mem=0, the memory of the whole node, on a shared node."""
    option = job.option("mem")
    if option is None or option.value.rstrip("KMGTkmgt") != "0" or job.takes_all_devices:
        return
    share = job.kind.memory_bytes_per_device if job.kind else None
    repair = (
        f"--mem={units.slurm_size(share * job.devices_per_node)}" if share and job.devices_per_node else "--exclusive"
    )
    yield hit(option, "--mem=0 asks for all memory of the node, but jobs share the node", repair)


def given_memory(job: JobScript) -> Iterator[Hit]:
    """Find a request for memory where Slurm gives memory with the devices."""
    option = job.memory_option
    if option and job.kind and job.kind.memory_follows_devices and job.machine and job.kind.memory_bytes_per_device:
        share = units.size(job.kind.memory_bytes_per_device)
        message = f"{option.written}: on {job.machine.title} each device brings {share} of memory"
        yield hit(option, message, f"remove {option.written}", edits=_without(job, option))


def _without(job: JobScript, option: BatchOption) -> tuple[Edit, ...]:
    """Return the edit that removes an option, with its line if nothing else is on it."""
    line = job.lines[option.line - 1]
    if line.split(None, 1)[1].strip() == option.written:
        return (Edit(line=option.line, column=1, old=f"{line}\n", new=""),)
    return (Edit(line=option.line, column=option.column - 1, old=f" {option.written}", new=""),)


def exclusive_without_memory(job: JobScript) -> Iterator[Hit]:
    """Find exclusive nodes without their whole memory."""
    option, kind = job.option("exclusive"), job.kind
    if option is None or job.memory_option or kind is None or not kind.memory_bytes or kind.memory_follows_devices:
        return
    if job.partition is not None and not job.partition.whole_nodes:
        message = f"--exclusive gives the cores and devices of a node, not its {units.size(kind.memory_bytes)}"
        yield hit(option, message, f"--mem={units.slurm_size(kind.memory_bytes)}")


def unused_part(job: JobScript) -> Iterator[Hit]:
    """Find whole nodes that are billed, with devices that are not requested."""
    kind, row, option = job.kind, job.partition, job.option("partition")
    if kind is None or row is None or option is None or not kind.num_devices or not job.has_whole_nodes:
        return
    if 0 < job.devices_per_node < kind.num_devices:
        others = [each.name for each in job.machine.partitions if _shares(each, row)] if job.machine else []
        message = f"the job uses {_part(job)}, but whole nodes are billed"
        yield hit(option, message, f"--partition={others[0]}" if others else f"--gpus-per-node={kind.num_devices}")


def _shares(other: object, row: object) -> bool:
    """Say whether another open partition shares the same node type by the device."""
    same = getattr(other, "node_type", "") == getattr(row, "node_type", None)
    is_open = getattr(other, "retired_on", None) is None and getattr(other, "purpose", "") == "batch"
    return same and is_open and not getattr(other, "whole_nodes", True)


RULES = (
    Rule(code="ECH109", find=no_devices),
    Rule(code="ECH110", find=few_cores),
    Rule(code="ECH111", find=over_share),
    Rule(code="ECH112", find=little_memory),
    Rule(code="ECH113", find=all_memory),
    Rule(code="ECH114", find=given_memory),
    Rule(code="ECH115", find=exclusive_without_memory),
    Rule(code="ECH116", find=unused_part),
)
