"""Find and end every process that a run has left on this node."""

import os
import signal
import time
from typing import Collection, List, Tuple

MARK = "ECHELON_AGENT"  # in the environment of everything an agent starts, and of all that those start


def _sessions_and_states() -> List[Tuple[int, int, str]]:
    rows = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as file:
                    text = file.read()
            except OSError:
                continue
            # 4242 (a name) S 1 4242 4242 …: state, parent, group, session follow the last parenthesis
            fields = text[text.rindex(b")") + 2 :].split()
            rows.append((int(name), int(fields[3]), fields[0].decode()))
    return rows


def _has_mark(pid: int, mark: bytes) -> bool:
    try:
        with open("/proc/%d/environ" % pid, "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def leftovers(mark: str, sessions: Collection[int], spare: Collection[int]) -> List[int]:
    """Return the living processes that bear the mark or belong to one of the sessions."""
    wanted = ("%s=%s" % (MARK, mark)).encode()
    return [
        pid
        for pid, session, state in _sessions_and_states()
        if state not in "ZX" and pid not in spare and (session in sessions or _has_mark(pid, wanted))
    ]


def kill_all(mark: str, sessions: Collection[int], spare: Collection[int], *, seconds: float = 3.0) -> None:
    """Kill leftovers again and again until there are none: a dying process may still be forking."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pids = leftovers(mark, sessions, spare)
        if not pids:
            return
        for pid in pids:
            send(pid, signal.SIGKILL)
        time.sleep(0.02)


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone by now."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
