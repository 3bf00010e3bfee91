"""Read what this process may use: cores, memory, the kernel's limits, variables that affect a run."""

import os
import resource
from typing import Mapping

from ...environment import threads
from ...hardware import files
from ...topology.cpus import cpu_list, parse_cpu_list
from ...topology.node import Node
from .nouns import Cores, EnvironmentSettings, KernelLimits

_NO_LIMIT = 1 << 60  # without a limit, cgroup v1 shows a number near 2^63


def read_cores(root: str, node: Node) -> Cores:
    """Return the cores and memory of a node that the mask, the cgroup and the memory policy leave."""
    allowed = set(node.allowed)
    usable = [cpu for cpu in node.cpus if cpu.number in allowed]
    num_allowed = len({cpu.core for cpu in usable})
    quota = threads.num_cores(root) if os.path.realpath(root) == "/" else len(node.allowed)
    memory = files.fields(os.path.join(root, "proc/meminfo"))
    domains = files.fields(os.path.join(root, "proc/self/status")).get("Mems_allowed_list", "")
    return Cores(
        num_cores=len({cpu.core for cpu in node.cpus}),
        num_threads=len(node.cpus),
        allowed=cpu_list(node.allowed),
        num_allowed_cores=num_allowed,
        num_usable=min(num_allowed, quota) if num_allowed else quota,
        numa_of_allowed=tuple(sorted({cpu.numa for cpu in usable if cpu.numa >= 0})),
        numa_of_memory=parse_cpu_list(domains),
        memory_policy=_policy(root),
        memory_bytes=_kibibytes(memory.get("MemTotal", "")),
        available_bytes=_kibibytes(memory.get("MemAvailable", "")),
        memory_limit_bytes=_limit(root),
        load=_load(root),
    )


def _kibibytes(value: str) -> int:
    return files.number(value.partition(" ")[0], 0) * 1024  # 127863252 kB


def _policy(root: str) -> str:
    """Return the memory policy of this process, as its first mapping shows it.

    55d0c0000000 bind:0 file=/usr/bin/python3.11 mapped=2 N0=2 kernelpagesize_kB=4
    """
    words = files.text(os.path.join(root, "proc/self/numa_maps")).partition("\n")[0].split()
    return words[1] if len(words) > 1 else ""


def _limit(root: str) -> int:
    """Return the lowest memory limit of this process's cgroups and their ancestors; 0 without a limit."""
    names = ("memory.max", "memory.limit_in_bytes")
    folders = [folder for folders in files.cgroups("memory", root) for folder in folders]
    limits = [files.number(files.text(os.path.join(folder, name)), 0) for folder in folders for name in names]
    return min((limit for limit in limits if 0 < limit < _NO_LIMIT), default=0)


def _load(root: str) -> float:
    # 0.52 0.58 0.59 1/467 12345
    try:
        return float(files.text(os.path.join(root, "proc/loadavg")).split()[0])
    except (ValueError, IndexError):
        return 0.0


SHARED = "dev/shm"


def read_limits(root: str) -> KernelLimits:
    """Return the limits of this process, and the size of shared memory (/dev/shm)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    size = free = 0
    path = os.path.join(root, SHARED)
    try:
        status = os.statvfs(path)
        size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    except OSError:
        pass  # /dev/shm does not exist
    return KernelLimits(
        locked_bytes=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        open_files=soft,
        open_files_most=hard,
        processes=resource.getrlimit(resource.RLIMIT_NPROC)[0],
        stack_bytes=resource.getrlimit(resource.RLIMIT_STACK)[0],
        shared_bytes=size,
        shared_free_bytes=free,
        is_shared_writable=os.access(path, os.W_OK | os.X_OK),
    )


PREFIXES = (
    "NCCL_", "RCCL_", "MIOPEN_", "HIP_", "HSA_", "ROCR_", "ROC_", "CUDA_", "GPU_", "AMD_", "OMP_", "MKL_", "KMP_",
    "GOMP_", "OPENBLAS_", "TORCH", "PYTORCH_", "FI_", "OFI_", "CXI_", "MPICH_", "UCX_", "TRITON_", "HF_",
    "TRANSFORMERS_", "XDG_", "TMPDIR", "PYTHON", "LD_", "GLOO_", "TP_", "MASTER_", "AITER_", "NUMBA_", "JAX_", "XLA_",
    "ACCELERATE_", "DS_", "NVIDIA_", "SINGULARITY", "APPTAINER", "HOME", "USER",
    # misspelled prefixes, too: a check compares such names with the known ones
    "NCLL_", "NCC_", "NCCL", "MIOPN_", "MOIPEN_", "MIPEN_", "OMP", "HIP", "ROCR", "CUDA", "RCC",
)  # fmt: skip
SECRETS = ("TOKEN", "KEY", "SECRET", "PASSW", "CREDENTIAL", "AUTH", "COOKIE")
MOST_BYTES = 4096


def read_settings(environ: Mapping[str, str]) -> EnvironmentSettings:
    """Return the variables that affect a run; variables that may hold a secret are never read."""
    return EnvironmentSettings(
        {
            name: value[:MOST_BYTES]
            for name, value in sorted(environ.items())
            if name.startswith(PREFIXES) and not any(word in name.upper() for word in SECRETS)
        }
    )
