"""Has every rank cores of its own, near to its device, and memory?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from echelon.checks.finding import Finding, Wanted, error, note, warning
from echelon.environment import digits
from echelon.node.survey.nouns import Cores, Survey
from echelon.topology.cpus import cpu_list, parse_cpu_list
from echelon.units import GIB, counted, size

BUSY = 1.5  # runnable processes per core
LEAST_CORES = 8  # a smaller machine is a workstation: its owner's other work is expected


def check_cores(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Compare the allowed cores with the ranks and with the machine's published share; look for other load."""
    cores, ranks, kind = survey.cores, wanted.ranks_on(survey), wanted.kind
    share = kind.cores_per_device if kind is not None and kind.cores_per_device else 0
    has_devices = bool(survey.devices.visible)
    if cores.num_usable < ranks:
        yield _too_few(cores, ranks, share, wanted, has_devices=has_devices)
    elif has_devices and share and cores.num_usable < ranks * share:
        yield warning(
            message=f"{cores.num_usable} cores for {ranks} ranks, but the share of each device is {share}",
            evidence=f"allowed: {cores.allowed}",
            remedy=f"--cpus-per-gpu={share}",
            source=kind.source if kind is not None else "",
        )
    elif has_devices and not share and cores.num_usable < 2 * ranks and cores.num_cores >= 4 * ranks:
        yield warning(
            message=f"{cores.num_usable} of the node's {cores.num_cores} cores for {ranks} ranks: data loaders share "
            "them with the ranks",
            evidence=f"allowed: {cores.allowed}",
            remedy=f"--cpus-per-gpu={cores.num_cores // ranks}",
        )
    if cores.num_usable < cores.num_allowed_cores:
        yield warning(
            message=f"the cgroup gives the time of {cores.num_usable} cores, but allows {cores.num_allowed_cores}: a "
            "program that counts the cores starts too many threads",
            evidence=f"allowed: {cores.allowed}",
            remedy=f"export OMP_NUM_THREADS={max(1, cores.num_usable // ranks)}",
        )
    yield from _reserved(cores, wanted)
    is_whole = cores.num_usable == cores.num_cores >= LEAST_CORES
    if is_whole and cores.load > BUSY * cores.num_cores:
        yield warning(
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
    return error(
        message=f"{ranks} ranks on {counted(cores.num_usable, 'core')}",
        evidence=f"allowed: {cores.allowed}; the node has {cores.num_cores} cores",
        remedy=remedy,
        source="in Slurm, srun does not inherit --cpus-per-task from the job" if cores.num_allowed_cores == 1 else "",
    )


def _reserved(cores: Cores, wanted: Wanted) -> Iterator[Finding]:
    kind = wanted.kind
    taken = sorted(set(kind.reserved_cores) & set(parse_cpu_list(cores.allowed))) if kind is not None else []
    if kind is not None and taken and len(taken) < len(kind.reserved_cores):
        yield note(
            message=f"the ranks may use cores {cpu_list(taken)}, but {wanted.machine} reserves them for the system",
            evidence=f"allowed: {cores.allowed}",
            remedy="echelon run --bind auto   leaves them out",
            source=kind.source,
        )


LOCAL = 10


def check_distance(survey: Survey, _wanted: Wanted) -> Iterator[Finding]:
    """Report devices without an allowed core in their NUMA domain."""
    visible = set(survey.devices.visible)
    far = [device for device in survey.devices.devices if device.number in visible and device.distance > LOCAL]
    if far:
        numbers = ",".join(str(device.number) for device in far)
        domains = ",".join(str(number) for number in sorted({device.numa for device in far if device.numa >= 0}))
        yield warning(
            message=f"the ranks may use no core near device{'s' if len(far) > 1 else ''} {numbers}",
            evidence=f"allowed: {survey.cores.allowed} (NUMA domains "
            f"{','.join(map(str, survey.cores.numa_of_allowed))}); the devices are in {domains or 'others'}",
            remedy="request cores together with devices: --cpus-per-gpu, or whole nodes: --exclusive",
            source="lumi-userguide: docs/runjobs/scheduled-jobs/distribution-binding.md",
        )


COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def check_threads(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Multiply threads by ranks; report an invalid thread count, and settings that bind several threads to one core."""
    variables, cores, ranks = survey.settings.variables, survey.cores, wanted.ranks_on(survey)
    fair = max(1, cores.num_usable // ranks)
    for name in COUNTS:
        text = variables.get(name)
        if text is None:
            continue
        first = text.split(",")[0].strip()
        if not digits.whole(first):
            yield warning(
                message=f"{name} is not a number of threads", evidence=f"{name}={text!r}",
                remedy=f"export {name}={fair}",
            )  # fmt: skip
        elif int(first) * ranks > cores.num_usable and int(first) > 1:
            yield warning(
                message=f"{name} × ranks: {int(first)} × {ranks} = {int(first) * ranks} threads on "
                f"{cores.num_usable} cores",
                evidence=f"allowed: {cores.allowed}",
                remedy=f"export {name}={fair}",
                source="OpenMP specification: OMP_NUM_THREADS; csc-user-guide commit 042c79849",
            )
        elif name == COUNTS[0] and int(first) == 1 and fair >= 4:
            yield note(
                message=f"{name}=1, but there are {fair} cores for each rank",
                evidence=f"{cores.num_usable} cores, {ranks} ranks",
                remedy=f"unset {name}   echelon sets it to the share of each rank",
            )
    yield from _places(survey, ranks)


def _places(survey: Survey, ranks: int) -> Iterator[Finding]:
    for name in ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES"):
        text = survey.settings.variables.get(name, "")
        has_numbers = name == "GOMP_CPU_AFFINITY" or "{" in text or "proclist" in text
        if text and ranks > 1 and has_numbers:
            yield warning(
                message=f"{name} names the same cores for all {ranks} ranks: their threads share these cores",
                evidence=f"{name}={text}",
                remedy=f"unset {name}   and let echelon run --bind auto place the ranks",
            )


LEAST_SHARE = 0.25  # share of a device's memory, per rank: a checkpoint passes through the host
LEAST_BYTES = GIB  # torch alone uses half of this


def check_memory(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report a memory policy that excludes the NUMA domains of the cores, and too little memory."""
    cores, ranks = survey.cores, wanted.ranks_on(survey)
    missing = sorted(set(cores.numa_of_allowed) - set(cores.numa_of_memory)) if cores.numa_of_memory else []
    if missing:
        yield warning(
            message=f"the cores are in NUMA domains {_listed(cores.numa_of_allowed)}, but memory may come only from "
            f"{_listed(cores.numa_of_memory)}",
            evidence="Mems_allowed_list of /proc/self/status",
            remedy="srun --mem-bind=none …",
        )
    how, _, where = cores.memory_policy.partition(":")
    if how.startswith("bind") and len(cores.numa_of_allowed) > 1:
        yield warning(
            message=f"memory is bound to NUMA domain {where}, but the ranks run in {_listed(cores.numa_of_allowed)}",
            evidence=f"policy {cores.memory_policy}: numactl or --mem-bind",
            remedy="numactl --localalloc …   in place of --membind",
        )
    limit = min(each for each in (cores.memory_bytes, cores.memory_limit_bytes or cores.memory_bytes))
    of_devices = sum(each.memory_bytes for each in survey.devices.devices if each.number in survey.devices.visible)
    wants = max(int(LEAST_SHARE * of_devices), LEAST_BYTES * ranks)
    if 0 < limit < wants:
        share = wanted.kind.memory_bytes_per_device if wanted.kind is not None else None
        yield warning(
            message=f"{size(limit)} of memory for {ranks} ranks"
            + (f", but their devices have {size(of_devices)}" if of_devices else ""),
            evidence="the cgroup's limit" if cores.memory_limit_bytes else "the node's memory",
            remedy=f"--mem-per-gpu={-(-(share or of_devices // max(1, ranks) or LEAST_BYTES) // GIB)}G",
        )
    elif 0 < cores.available_bytes < LEAST_BYTES * ranks and not cores.memory_limit_bytes:
        yield warning(
            message="other programs use the memory",
            evidence=f"{size(cores.available_bytes)} of {size(cores.memory_bytes)} are free",
            remedy="ls -l /dev/shm /tmp   shows files that use memory on nodes without a disk",
        )


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))
