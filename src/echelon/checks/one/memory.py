"""Is there memory for the ranks, and is it near to their cores?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Survey
from echelon.units import GIB, size

LEAST_SHARE = 0.25  # share of a device's memory, per rank: a checkpoint passes through the host
LEAST_BYTES = GIB  # torch alone uses half of this


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report a memory policy that excludes the NUMA domains of the cores, and too little memory."""
    cores, ranks = survey.cores, wanted.ranks_on(survey)
    missing = sorted(set(cores.numa_of_allowed) - set(cores.numa_of_memory)) if cores.numa_of_memory else []
    if missing:
        yield Finding(
            severity="warning",
            message=f"the cores are in NUMA domains {_listed(cores.numa_of_allowed)}, but memory may come only from "
            f"{_listed(cores.numa_of_memory)}",
            evidence="Mems_allowed_list of /proc/self/status",
            remedy="srun --mem-bind=none …",
        )
    how, _, where = cores.memory_policy.partition(":")
    if how.startswith("bind") and len(cores.numa_of_allowed) > 1:
        yield Finding(
            severity="warning",
            message=f"memory is bound to NUMA domain {where}, but the ranks run in {_listed(cores.numa_of_allowed)}",
            evidence=f"policy {cores.memory_policy}: numactl or --mem-bind",
            remedy="numactl --localalloc …   in place of --membind",
        )
    limit = min(each for each in (cores.memory_bytes, cores.memory_limit_bytes or cores.memory_bytes))
    of_devices = sum(each.memory_bytes for each in survey.devices.devices if each.number in survey.devices.visible)
    wants = max(int(LEAST_SHARE * of_devices), LEAST_BYTES * ranks)
    if 0 < limit < wants:
        share = wanted.kind.memory_bytes_per_device if wanted.kind is not None else None
        yield Finding(
            severity="warning",
            message=f"{size(limit)} of memory for {ranks} ranks"
            + (f", but their devices have {size(of_devices)}" if of_devices else ""),
            evidence="the cgroup's limit" if cores.memory_limit_bytes else "the node's memory",
            remedy=f"--mem-per-gpu={-(-(share or of_devices // max(1, ranks) or LEAST_BYTES) // GIB)}G",
        )
    elif 0 < cores.available_bytes < LEAST_BYTES * ranks and not cores.memory_limit_bytes:
        yield Finding(
            severity="warning",
            message="other programs use the memory",
            evidence=f"{size(cores.available_bytes)} of {size(cores.memory_bytes)} are free",
            remedy="ls -l /dev/shm /tmp   shows files that use memory on nodes without a disk",
        )


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
