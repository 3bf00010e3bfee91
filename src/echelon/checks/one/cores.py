"""Has every rank cores of its own?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Cores, Survey
from echelon.topology.cpu_lists import cpu_list, parse_cpu_list

BUSY = 1.5  # runnable processes per core
LEAST_CORES = 8  # a smaller machine is a workstation: its owner's other work is expected


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Compare the allowed cores with the ranks and with the machine's published share; look for other load."""
    cores, ranks, kind = survey.cores, wanted.ranks_on(survey), wanted.kind
    share = kind.cores_per_device if kind is not None and kind.cores_per_device else 0
    has_devices = bool(survey.devices.visible)
    if cores.num_usable < ranks:
        yield _too_few(cores, ranks, share, wanted, has_devices=has_devices)
    elif has_devices and share and cores.num_usable < ranks * share:
        yield Finding(
            severity="warning",
            message=f"{cores.num_usable} cores for {ranks} ranks, but the share of each device is {share}",
            evidence=f"allowed: {cores.allowed}",
            remedy=f"--cpus-per-gpu={share}",
            source=kind.source if kind is not None else "",
        )
    elif has_devices and not share and cores.num_usable < 2 * ranks and cores.num_cores >= 4 * ranks:
        yield Finding(
            severity="warning",
            message=f"{cores.num_usable} of the node's {cores.num_cores} cores for {ranks} ranks: data loaders share "
            "them with the ranks",
            evidence=f"allowed: {cores.allowed}",
            remedy=f"--cpus-per-gpu={cores.num_cores // ranks}",
        )
    if cores.num_usable < cores.num_allowed_cores:
        yield Finding(
            severity="warning",
            message=f"the cgroup gives the time of {cores.num_usable} cores, but allows {cores.num_allowed_cores}: a "
            "program that counts the cores starts too many threads",
            evidence=f"allowed: {cores.allowed}",
            remedy=f"export OMP_NUM_THREADS={max(1, cores.num_usable // ranks)}",
        )
    yield from _reserved(cores, wanted)
    is_whole = cores.num_usable == cores.num_cores >= LEAST_CORES
    if is_whole and cores.load > BUSY * cores.num_cores:
        yield Finding(
            severity="warning",
            message="other programs keep the node busy",
            evidence=f"{cores.load:g} processes want to run on {cores.num_cores} cores",
            remedy="pgrep -au $USER   shows which processes are yours",
        )


def _too_few(cores: Cores, ranks: int, share: int, wanted: Wanted, *, has_devices: bool) -> Finding:
    most = share or max(1, cores.num_cores // ranks)
    remedy = f"{'--cpus-per-gpu' if has_devices else '--cpus-per-task'}={most}"
    if cores.num_usable == cores.num_cores:
        remedy = f"echelon run -n {cores.num_usable} …"
    elif not wanted.in_allocation:
        remedy = f"taskset --cpu-list 0-{cores.num_threads - 1} echelon run …"
    return Finding(
        severity="error",
        message=f"{ranks} ranks on {cores.num_usable} core{'s' if cores.num_usable != 1 else ''}",
        evidence=f"allowed: {cores.allowed}; the node has {cores.num_cores} cores",
        remedy=remedy,
        source="in Slurm, srun does not inherit --cpus-per-task from the job" if cores.num_allowed_cores == 1 else "",
    )


def _reserved(cores: Cores, wanted: Wanted) -> Iterator[Finding]:
    kind = wanted.kind
    taken = sorted(set(kind.reserved_cores) & set(parse_cpu_list(cores.allowed))) if kind is not None else []
    if kind is not None and taken and len(taken) < len(kind.reserved_cores):
        yield Finding(
            severity="note",
            message=f"the ranks may use cores {cpu_list(taken)}, but {wanted.machine} reserves them for the system",
            evidence=f"allowed: {cores.allowed}",
            remedy="echelon run --bind auto   leaves them out",
            source=kind.source,
        )
