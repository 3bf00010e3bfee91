"""Bind a process to cores, and ask the kernel for a process's binding."""

import os
from typing import Dict, List, Optional, Sequence, Set, Tuple

# the variables that decide which device a process uses
SEEN = ("LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


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
