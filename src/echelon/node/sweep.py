"""Find and end all processes that a run, or a lost agent, has left on this node."""

import os
import signal
import time
from typing import Collection, FrozenSet, List, NamedTuple, Sequence

from . import processes

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
PAUSE_SECONDS = 0.02
MARK = "ECHELON_AGENT"  # an environment variable of everything that an agent starts, and of its descendants


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends, so that all of them stay visible."""
    import ctypes  # 2 MB that an agent with a warm process does not need: the warm process adopts

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Spared(NamedTuple):
    """Processes that stay alive, but not their descendants; and whole sessions that stay alive."""

    pids: FrozenSet[int]
    sessions: FrozenSet[int] = frozenset()


def leftovers(mark: str, sessions: Collection[int], spared: Spared) -> List[int]:
    """Return living processes that have the mark, belong to one of the sessions, or descend from a spared process."""
    wanted = ("%s=%s" % (MARK, mark)).encode()
    table = processes.table()
    below = processes.descendants(spared.pids, table).values()
    family = {process.pid for children in below for process in children}
    return [
        process.pid
        for process in table
        if process.state not in "ZX"
        and process.pid not in spared.pids
        and process.session not in spared.sessions
        and (process.pid in family or process.session in sessions or wanted in processes.words(process.pid, "environ"))
    ]


def kill_all(mark: str, sessions: Collection[int], spared: Spared, *, seconds: float = 3.0) -> None:
    """Kill the leftovers repeatedly until twice none is left.

    A dying process may still be forking, and one that becomes another program shows no mark in between.
    """
    deadline, num_empty = time.monotonic() + seconds, 0
    while time.monotonic() < deadline and num_empty < 2:
        pids = leftovers(mark, sessions, spared)
        num_empty = 0 if pids else num_empty + 1
        for pid in pids:
            send(pid, signal.SIGKILL)
        time.sleep(PAUSE_SECONDS)


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


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
        send(life.predecessor, signal.SIGKILL)
    spared = Spared(frozenset((os.getpid(), guard_pid)))
    for number in range(life.number):
        kill_all(mark_of(run_id, agent_index, number), (), spared)


def _is_agent(pid: int, run_directory: str) -> bool:
    """Say whether a process is an agent of this run: its number may have been given to another program."""
    words = processes.words(pid, "cmdline")
    return b"agent" in words and os.fsencode(run_directory) in words
