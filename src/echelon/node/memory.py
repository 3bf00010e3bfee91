"""Find out whether the kernel has killed processes of this job for lack of memory."""

import os
from typing import List

from ..environment import digits

MOUNT = "/sys/fs/cgroup"


def oom_kills(mount: str = MOUNT, membership: str = "/proc/self/cgroup") -> int:
    """Return how many processes of this cgroup and its ancestors were killed; 0 if there are no counters."""
    return max([_count(path) for path in _counters(mount, membership)], default=0)


def _counters(mount: str, membership: str) -> List[str]:
    """Return the counter files of all cgroups around this process.

    0::/system.slice/slurmstepd.scope/job_7/step_0   (v2)   or   9:memory:/slurm/uid_1/job_7/step_0   (v1)
    """
    paths = []
    for line in _read(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        base, name = (mount, "memory.events") if not controllers else (mount + "/memory", "memory.oom_control")
        if controllers and "memory" not in controllers.split(","):
            continue
        words = [word for word in group.split("/") if word]
        paths += [os.path.join(base, *words[:depth], name) for depth in range(len(words), -1, -1)]
    return paths


def _count(path: str) -> int:
    # memory.events has the line "oom_kill 1" among others; memory.oom_control has the same line
    for line in _read(path).splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and digits.is_number(value):
            return int(value)
    return 0


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
