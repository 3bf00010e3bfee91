"""Does the node answer, do the kernel's limits suffice, and do its variables mean what was meant?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from echelon.checks.finding import Finding, Wanted, error, leave_out, note, warning
from echelon.environment import digits
from echelon.node.survey.nouns import Survey
from echelon.script.nearest import meant
from echelon.units import GIB, counted, size

_REMEDIES = {
    "topology": "leave the node out and tell the support: its drivers or its /sys do not answer",
    "healths": "leave the node out and tell the support: the devices' driver does not answer",
    "folders": "df -h   finds the file system that hangs",
    "network": "getent hosts $(hostname)   shows whether the name service hangs",
}

_WORDS = {"healths": "devices' health", "topology": "topology (cores and devices)", "folders": "folders for caches"}


def check_answers(survey: Survey, _wanted: Wanted) -> Iterator[Finding]:
    """Report a node that did not answer, or parts of its survey that did not."""
    for part, why in survey.silent.items():
        if part == "node":
            yield error(message="the node does not answer", evidence=why, remedy=leave_out(survey.node))
            continue
        yield Finding(
            severity="error" if part in ("topology", "devices", "folders") else "warning",
            message=f"its {_WORDS.get(part, part)} {'cannot be read' if 'failed' in why else why}",
            evidence=why,
            remedy=_REMEDIES.get(part, "leave the node out, or run echelon check there again"),
        )


LEAST_FILES = 1024  # each loader worker and each peer holds some; this is Linux's default
LEAST_FILES_PER_RANK = 64
LEAST_LOCKED_BYTES = GIB  # RDMA pins its buffers; NCCL's documentation asks for no limit
LEAST_SHARED_BYTES = GIB  # for the loaders of each rank; containers have 64 MiB by default
LEAST_PROCESSES = 4096


def check_limits(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
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
        yield warning(
            message=f"the limit is {limits.open_files} open files, but loaders and {ranks} ranks need more",
            evidence=f"ulimit -n; you may raise it to {most}",
            remedy=f"ulimit -n {max(least, min(most, 65536))}" if most >= least else "ask the support to raise it",
        )
    if 0 <= limits.processes < LEAST_PROCESSES:
        yield warning(
            message=f"the limit is {limits.processes} processes and threads",
            evidence="ulimit -u", remedy="ulimit -u $(ulimit -Hu)",
        )  # fmt: skip
    yield from _shared(survey, ranks)


def _shared(survey: Survey, ranks: int) -> Iterator[Finding]:
    limits = survey.limits
    if limits.shared_bytes == 0 or not limits.is_shared_writable:
        yield error(
            message="/dev/shm " + ("is missing" if limits.shared_bytes == 0 else "cannot be written")
            + ": loaders with workers and NCCL within a node fail",
            evidence="df /dev/shm", remedy="bind it into the container: --bind /dev/shm",
            source="PyTorch documentation: multiprocessing, sharing strategies",
        )  # fmt: skip
        return
    least = min(LEAST_SHARED_BYTES * ranks, 8 * GIB)
    if limits.shared_bytes < least:
        yield warning(
            message=f"/dev/shm has {size(limits.shared_bytes)} for {counted(ranks, 'rank')}: loaders "
            "pass batches through it",
            evidence="df /dev/shm",
            remedy="docker run --shm-size=16g …   or bind the node's own: --bind /dev/shm",
            source="PyTorch documentation: multiprocessing; NCCL documentation: shared memory",
        )
    elif limits.shared_free_bytes < least // 4:
        yield warning(
            message=f"/dev/shm has {size(limits.shared_free_bytes)} left of {size(limits.shared_bytes)}",
            evidence="df /dev/shm",
            remedy="ls -lS /dev/shm   shows files of earlier jobs; remove yours with rm",
        )


def _on(value: str) -> bool:
    return value.strip().lower() not in ("", "0", "off", "false", "no")


def _at_least(level: int) -> Callable[[str], bool]:
    return lambda value: digits.whole(value.strip(), -1) >= level


SLOWS: tuple[tuple[str, Callable[[str], bool], str, str], ...] = (
    ("CUDA_LAUNCH_BLOCKING", _on, "the program waits for each kernel", "CUDA programming guide"),
    ("HIP_LAUNCH_BLOCKING", _on, "the program waits for each kernel", "HIP documentation: debugging"),
    ("AMD_SERIALIZE_KERNEL", _on, "the program waits for each kernel", "HIP documentation: debugging"),
    ("AMD_SERIALIZE_COPY", _on, "the program waits for each copy", "HIP documentation: debugging"),
    ("HSA_ENABLE_SDMA", lambda value: value == "0", "kernels make copies, not the copy engines",
     "ROCm documentation: environment variables"),
    ("AMD_LOG_LEVEL", _at_least(3), "HIP logs every call", "HIP documentation: logging"),
    ("MIOPEN_ENABLE_LOGGING", _on, "MIOpen logs every call", "MIOpen documentation: logging"),
    ("MIOPEN_CHECK_NUMERICS", _on, "MIOpen searches every tensor for NaN", "MIOpen documentation"),
    ("MIOPEN_DISABLE_CACHE", _on, "every run compiles the kernels again", "MIOpen documentation: cache"),
    ("TORCH_DISTRIBUTED_DEBUG", lambda value: value.upper() == "DETAIL", "a second collective checks each collective",
     "PyTorch documentation: distributed, debugging"),
    ("TORCH_NCCL_BLOCKING_WAIT", _on, "the program waits for each collective", "PyTorch documentation: NCCL variables"),
    ("NCCL_DEBUG", lambda value: value.upper() == "TRACE", "NCCL writes a line for every call",
     "NCCL documentation: environment variables"),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", _on, "the driver allocates each tensor", "PyTorch documentation: CUDA"),
    ("PYTHONMALLOC", lambda value: "debug" in value, "Python checks each allocation", "Python: -X dev"),
    ("PYTHONTRACEMALLOC", _on, "Python traces each allocation", "Python documentation: tracemalloc"),
    ("CUDA_CACHE_DISABLE", _on, "every run compiles the kernels again", "CUDA programming guide"),
)  # fmt: skip
SHARED_FILE = "NCCL_DEBUG_FILE"


def check_slowing(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report debugging switches, and a log file that all ranks write."""
    variables = survey.settings.variables
    for name, is_slow, effect, source in SLOWS:
        if name in variables and is_slow(variables[name]):
            yield warning(
                message=f"{name}={variables[name]}: {effect}",
                evidence="it may be left from debugging",
                remedy=f"unset {name}", source=source,
            )  # fmt: skip
    path = variables.get(SHARED_FILE, "")
    if path and "%p" not in path and wanted.ranks_on(survey) * wanted.num_nodes > 1:
        yield warning(
            message=f"{SHARED_FILE}: all ranks write into one file", evidence=f"{path}",
            remedy=f"export {SHARED_FILE}={path}.%h.%p", source="NCCL documentation: environment variables",
        )  # fmt: skip


FAMILIES = ("NCCL", "NCLL", "NCC_", "RCCL", "RCC", "MIOPEN", "MIOPN", "MOIPEN", "MIPEN", "OMP", "TORCH_NCCL", "CUDA_",
            "ROCR", "HIP_", "HSA_", "GLOO_", "FI_", "CXI_", "OFI_NCCL", "UCX_", "MASTER_", "PYTORCH_", "TRITON_", "HF_",
            "TORCHINDUCTOR")  # fmt: skip


def check_spelling(survey: Survey, wanted: Wanted) -> Iterator[Finding]:
    """Report names that are nearly those of known variables, and names that no current version reads."""
    known = set(wanted.known_variables)
    for name, value in survey.settings.variables.items():
        if name in wanted.renamed_variables:
            new = wanted.renamed_variables[name]
            if new not in survey.settings.variables:
                yield note(
                    message=f"{name} is an old name; the new name is {new}",
                    evidence=f"{name}={value}",
                    remedy=f"export {new}={value}; unset {name}", source="the release notes of its program",
                )  # fmt: skip
            continue
        if not known or name in known or not name.startswith(FAMILIES):
            continue
        near = meant(name, known)
        if near:
            yield warning(
                message=f"nothing reads {name}; programs read {near[0]}",
                evidence=f"{name}={value}",
                remedy=f"export {near[0]}={value}; unset {name}",
                source="a guide of a computing centre had a misspelt MIOpen variable for months",
            )
