"""Bind a process to cores, and ask the kernel where one is bound."""

import os
from typing import Dict, List, Optional, Sequence, Set, Tuple

# what decides which device a process uses
SEEN = ("LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def apply(cpus: Sequence[int], pid: int = 0) -> None:
    """Bind a process; where the kernel refuses, what it really has is reported and compared."""
    if cpus:
        try:
            os.sched_setaffinity(pid, cpus)
        except OSError:
            pass


def look_at(pid: int) -> Optional[Tuple[List[int], Dict[str, str]]]:
    """Return the cores and the telling variables of a running process, in the kernel's words; None: it is gone."""
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
        return set()  # it has just ended
