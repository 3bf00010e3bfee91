"""Count and bind the cores that a process may use, and the threads that each of several ranks gets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Set, Tuple

from ..hardware import vendors
from . import digits

if TYPE_CHECKING:
    from collections.abc import Callable


def cores() -> list[int]:
    """Return the cores that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def num_cores(root: str = "/") -> int:
    """Return the number of cores that this process may use: its affinity, or its cgroup's quota."""
    return min([len(cores()), *_quotas(root)])


def omp_num_threads(num_cores: int, local_world_size: int) -> int:
    """Return the threads of one rank where the ranks of a node share the cores."""
    return max(1, num_cores // max(1, local_world_size))


def _quotas(root: str) -> list[int]:
    """Return the CPU quotas of this process's cgroups in whole cores, at least 1."""
    quotas = []
    for line in _read(os.path.join(root, "proc/self/cgroup")).splitlines():
        # 0::/user.slice/job_7   (v2)   or   4:cpu,cpuacct:/slurm/uid_1/job_7   (v1)
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            quotas += _quotas_up(os.path.join(root, "sys/fs/cgroup"), path, _quota_v2)
        elif "cpu" in controllers.split(","):
            quotas += _quotas_up(os.path.join(root, "sys/fs/cgroup", "cpu"), path, _quota_v1)
    return [max(1, int(quota)) for quota in quotas if quota > 0]


def _quotas_up(mount: str, path: str, quota: Callable[[str], float]) -> list[float]:
    """Return the quotas of a cgroup and of its ancestors: each one limits the process."""
    words = [word for word in path.split("/") if word]
    # Inside of a container the path may not exist: its own cgroup is then the mount, at depth 0.
    return [quota(os.path.join(mount, *words[:depth])) for depth in range(len(words) + 1)]


def _quota_v2(folder: str) -> float:
    # cpu.max: "200000 100000", or "max 100000" without a limit
    words = _read(os.path.join(folder, "cpu.max")).split()
    quota, period = words if len(words) == 2 else ("", "")
    return int(quota) / int(period) if digits.is_number(quota) and digits.whole(period) else 0.0


def _quota_v1(folder: str) -> float:
    # cpu.cfs_quota_us: "200000", or "-1" without a limit
    quota = _read(os.path.join(folder, "cpu.cfs_quota_us")).strip()
    period = _read(os.path.join(folder, "cpu.cfs_period_us")).strip()
    return int(quota) / int(period) if digits.is_number(quota) and digits.whole(period) else 0.0


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


# the variables that decide which device a process uses
SEEN = ("LOCAL_RANK", *vendors.VARIABLES)


def apply(cpus: Sequence[int], pid: int = 0) -> None:
    """Bind a process; if the kernel refuses, the real binding is reported and compared later."""
    if cpus:
        try:
            os.sched_setaffinity(pid, cpus)
        except OSError:
            pass


def look_at(pid: int) -> Optional[Tuple[List[int], Dict[str, str]]]:
    """Return the cores and the device variables of a process, as the kernel shows them; None if it has ended."""
    try:
        threads = [int(name) for name in os.listdir("/proc/%d/task" % pid)]
        cpus = sorted({cpu for thread in threads for cpu in _of_thread(thread)})
        with open("/proc/%d/environ" % pid, "rb") as file:
            pairs = (entry.partition(b"=") for entry in file.read().split(b"\0"))
            environ = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs if os.fsdecode(name) in SEEN}
    except OSError:
        return None
    return cpus, environ


def _of_thread(thread: int) -> Set[int]:
    try:
        return os.sched_getaffinity(thread)
    except OSError:
        return set()  # the process has just ended
