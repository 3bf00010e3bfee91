"""Count and bind the cores that a process may use, and the threads that each of several ranks gets."""

from __future__ import annotations

import os
from typing import Dict, List, Optional, Sequence, Set, Tuple

from ..hardware import files, vendors
from . import digits


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
    """Return the CPU quotas of this process's cgroups and of those around them in whole cores, at least 1."""
    quotas = [_quota(folder) for folders in files.cgroups("cpu", root) for folder in folders]
    return [max(1, int(quota)) for quota in quotas if quota > 0]


def _quota(folder: str) -> float:
    # cpu.max: "200000 100000", or "max 100000" without a limit; version 1 has a file for each, and "-1"
    both = files.text(os.path.join(folder, "cpu.max")).split()
    two = [files.text(os.path.join(folder, f"cpu.cfs_{name}_us")) for name in ("quota", "period")]
    quota, period = both if len(both) == 2 else two
    return int(quota) / int(period) if digits.is_number(quota) and digits.whole(period) else 0.0


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
