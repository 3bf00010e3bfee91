"""Read which processes belong to a private cluster from /proc."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

CLUSTER_MARK = "PRIVATE_SLURM"
NODE_MARKS = ("PRIVATE_SLURM_NODE", "SLURMD_NODENAME")


@dataclass(frozen=True)
class Process:
    """One process at one moment."""

    pid: int
    parent_pid: int
    name: str
    state: str
    """One letter of /proc/PID/stat, such as R, S or Z."""
    node: str
    """The node that it runs on, or an empty text."""
    command: tuple[str, ...]


def descendants(ancestor_pid: int) -> list[Process]:
    """List the living children of a process, their children and so on."""
    by_parent: dict[int, list[tuple[int, str, str]]] = {}
    for pid in pids():
        stat = _stat(pid)
        if stat and stat[2] != "Z":
            by_parent.setdefault(stat[0], []).append((pid, stat[1], stat[2]))
    found: list[Process] = []
    waiting = [(ancestor_pid, "")]
    while waiting:
        parent, parent_node = waiting.pop()
        for pid, name, state in by_parent.get(parent, []):
            environment = environ(pid)
            node = next((environment[key] for key in NODE_MARKS if environment.get(key)), parent_node)
            found.append(Process(pid, parent, name, state, node, _command(pid)))
            waiting.append((pid, node))
    return sorted(found, key=lambda process: process.pid)


def pids() -> list[int]:
    """List the ids of all processes of this machine."""
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def environ(pid: int) -> dict[str, str]:
    """Read the environment that a process was started with; empty if it is gone."""
    pairs = (pair.partition("=") for pair in _text(pid, "environ").split("\0"))
    return {key: value for key, _, value in pairs if key}


def is_alive(pid: int) -> bool:
    """Tell whether a process exists and is no zombie."""
    stat = _stat(pid)
    return stat is not None and stat[2] != "Z"


def kill(pid: int) -> None:
    """Kill a process that may be gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _stat(pid: int) -> tuple[int, str, str] | None:
    # 4810 (munged) S 4805 4810 ...; the name may contain anything, so it ends at the last bracket.
    before, _, after = _text(pid, "stat").rpartition(")")
    if not before:
        return None
    state, parent = after.split()[:2]
    return int(parent), before.partition("(")[2], state


def _command(pid: int) -> tuple[str, ...]:
    return tuple(_text(pid, "cmdline").rstrip("\0").split("\0"))


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="surrogateescape")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
