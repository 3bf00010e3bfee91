"""Lower the priority of gloo's event loops, so that they yield their cores.

A loop reads a connection only when no other thread holds its lock, and is woken at once as long as there is something
to read (gloo/transport/tcp: Pair::handleEvents takes the lock or leaves, Loop::run waits for a level). Where ranks are
as many as cores, the loop spins on the very core that the thread with the lock waits for; with a lower priority, and
as a batch thread, which takes no core from another when it wakes (man 7 sched), it makes way (docs/performance.md).
PyTorch 2.6 gives these threads no name: there they stay.
"""

import os
from contextlib import suppress

_LOOP = "gloo_tcp_loop"  # gloo's name for the thread
NICENESS = 10
"""How much lower: with 19, two programs that keep the same two cores busy made a step half as long again."""


def yield_cores() -> None:
    """Let all event loops of this process yield; it is called after a process group has been made."""
    try:
        threads = os.listdir("/proc/self/task")
    except OSError:
        return  # not Linux
    niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    for thread in threads:
        with suppress(OSError):  # it has ended, or this is not allowed here
            if _name_of(thread) == _LOOP:
                os.setpriority(os.PRIO_PROCESS, int(thread), niceness)
                os.sched_setscheduler(int(thread), os.SCHED_BATCH, os.sched_param(0))


def _name_of(thread: str) -> str:
    with open("/proc/self/task/%s/comm" % thread) as file:
        return file.read().strip()
