"""Does the kernel allow what ranks need?"""

from __future__ import annotations

from collections.abc import Iterator

from echelon.checks.finding import Finding, Wanted
from echelon.node.survey.nouns import Survey
from echelon.units import GIB, size

LEAST_FILES = 1024  # each loader worker and each peer holds some; this is Linux's default
LEAST_FILES_PER_RANK = 64
LEAST_LOCKED_BYTES = GIB  # RDMA pins its buffers; NCCL's documentation asks for no limit
LEAST_SHARED_BYTES = GIB  # for the loaders of each rank; containers have 64 MiB by default
LEAST_PROCESSES = 4096


def look(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Compare the limits of locked memory, open files, processes and shared memory with the ranks' needs."""
    limits, ranks = survey.limits, wanted.ranks_on(survey)
    has_rdma = any(each.kind in ("infiniband", "slingshot") for each in survey.network.interfaces)
    if wanted.num_nodes > 1 and has_rdma and 0 <= limits.locked_bytes < LEAST_LOCKED_BYTES:
        yield Finding(
            severity="error" if limits.locked_bytes < (1 << 24) else "warning",
            message=f"the limit for locked memory is {size(limits.locked_bytes)}, but RDMA needs to lock its buffers",
            evidence="ulimit -l",
            remedy="ulimit -l unlimited   in the script; or PropagateResourceLimitsExcept=MEMLOCK in Slurm",
            source="NCCL documentation: troubleshooting, system configuration",
        )  # fmt: skip
    least = max(LEAST_FILES, LEAST_FILES_PER_RANK * ranks)
    if 0 <= limits.open_files < least:
        most = limits.open_files_most if limits.open_files_most >= 0 else 65536
        yield Finding(
            severity="warning",
            message=f"the limit is {limits.open_files} open files, but loaders and {ranks} ranks need more",
            evidence=f"ulimit -n; you may raise it to {most}",
            remedy=f"ulimit -n {max(least, min(most, 65536))}" if most >= least else "ask the support to raise it",
        )
    if 0 <= limits.processes < LEAST_PROCESSES:
        yield Finding(
            severity="warning", message=f"the limit is {limits.processes} processes and threads",
            evidence="ulimit -u", remedy="ulimit -u $(ulimit -Hu)",
        )  # fmt: skip
    yield from _shared(survey, ranks)


def _shared(survey: Survey, ranks: int) -> Iterator[Finding]:
    limits = survey.limits
    if limits.shared_bytes == 0 or not limits.is_shared_writable:
        yield Finding(
            severity="error",
            message="/dev/shm " + ("is missing" if limits.shared_bytes == 0 else "cannot be written")
            + ": loaders with workers and NCCL within a node fail",
            evidence="df /dev/shm", remedy="bind it into the container: --bind /dev/shm",
            source="PyTorch documentation: multiprocessing, sharing strategies",
        )  # fmt: skip
        return
    least = min(LEAST_SHARED_BYTES * ranks, 8 * GIB)
    if limits.shared_bytes < least:
        yield Finding(
            severity="warning",
            message=f"/dev/shm has {size(limits.shared_bytes)} for {ranks} rank{'s' if ranks != 1 else ''}: loaders "
            "pass batches through it",
            evidence="df /dev/shm",
            remedy="docker run --shm-size=16g …   or bind the node's own: --bind /dev/shm",
            source="PyTorch documentation: multiprocessing; NCCL documentation: shared memory",
        )
    elif limits.shared_free_bytes < least // 4:
        yield Finding(
            severity="warning",
            message=f"/dev/shm has {size(limits.shared_free_bytes)} left of {size(limits.shared_bytes)}",
            evidence="df /dev/shm",
            remedy="ls -lS /dev/shm   shows files of earlier jobs; remove yours with rm",
        )
