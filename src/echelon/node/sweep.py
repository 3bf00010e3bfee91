"""Find and end all processes that a run, or a lost agent, has left on this node."""

import os
import signal
import time
from typing import Collection, Dict, FrozenSet, Iterable, List, NamedTuple, Sequence, Set

from ..environment import digits

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


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int
    state: str


def _processes() -> List[_Process]:
    rows = []
    for name in os.listdir("/proc"):
        if digits.is_number(name):
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    text = file.read()
            except OSError:
                continue
            # 4242 (a name) S 1 4242 4242 …: state, parent, group, session follow the last parenthesis
            fields = text[text.rindex(b")") + 2 :].split()
            rows.append(_Process(int(name), int(fields[1]), int(fields[3]), fields[0].decode()))
    return rows


def _has_mark(pid: int, mark: bytes) -> bool:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def leftovers(mark: str, sessions: Collection[int], spared: Spared) -> List[int]:
    """Return living processes that have the mark, belong to one of the sessions, or descend from a spared process."""
    wanted = ("%s=%s" % (MARK, mark)).encode()
    processes = _processes()
    family = _descendants(processes, spared.pids)
    return [
        each.pid
        for each in processes
        if each.state not in "ZX"
        and each.pid not in spared.pids
        and each.session not in spared.sessions
        and (each.pid in family or each.session in sessions or _has_mark(each.pid, wanted))
    ]


def _descendants(processes: Iterable[_Process], roots: Collection[int]) -> Set[int]:
    children: Dict[int, List[int]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process.pid)
    pids: Set[int] = set()
    waiting = list(roots)
    while waiting:
        new = [pid for pid in children.get(waiting.pop(), ()) if pid not in pids]
        pids.update(new)
        waiting += new
    return pids


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
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    return b"agent" in words and os.fsencode(run_directory) in words
