"""Take the place of an agent that was lost on this node: end everything that it has left."""

import os
import signal
from typing import NamedTuple, Sequence

from . import sweep


class Life(NamedTuple):
    """How often the agent of this place was started before, and the process of the last one."""

    number: int = 0
    predecessor: int = 0

    @classmethod
    def read(cls, words: Sequence[str], first: int) -> "Life":
        """Read the two numbers from a command line; `first` lives may have been before them."""
        number, predecessor = map(int, words) if words else (0, 0)
        return cls(first + number, predecessor)


def mark_of(run_id: str, agent_index: int, life: int) -> str:
    """Return the mark of all processes of one agent; the next agent of the same place has another mark."""
    return "%s.%d" % (run_id, agent_index) + (".%d" % life if life else "")


def clear(run_id: str, agent_index: int, life: Life, run_directory: str, guard_pid: int) -> None:
    """End the earlier agents of this place, with their ranks: these still hold devices."""
    if life.predecessor and _is_agent(life.predecessor, run_directory):
        sweep.send(life.predecessor, signal.SIGKILL)
    spared = sweep.Spared(frozenset((os.getpid(), guard_pid)))
    for number in range(life.number):
        sweep.kill_all(mark_of(run_id, agent_index, number), (), spared)


def _is_agent(pid: int, run_directory: str) -> bool:
    """Say whether a process is an agent of this run: its number may have been given to another program."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    return b"agent" in words and os.fsencode(run_directory) in words
