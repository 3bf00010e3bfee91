"""The state of processes as the kernel shows it in /proc: whether they run, sleep, are stopped, or wait for a disk."""

import os
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set

from ..environment import digits

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "in a wait that no signal ends", "Z": "dead"}
_LARGEST_BYTES = 4000


class Process(NamedTuple):
    """A process with what it has used so far."""

    pid: int
    parent: int
    state: str
    ticks: int


def read(pid: int) -> Optional[Process]:
    """Return a process; None if it is gone."""
    text = _text(pid, "stat")
    if ")" not in text:
        return None
    # 4242 (a name) S 1 …: state and parent follow the last parenthesis; utime and stime are the fields 14 and 15
    fields = text[text.rindex(")") + 2 :].split()
    return Process(pid, int(fields[1]), fields[0], int(fields[11]) + int(fields[12]))


def descendants(roots: Iterable[int]) -> Dict[int, List[Process]]:
    """Return the living and dead descendants of each root."""
    processes = [read(int(name)) for name in os.listdir("/proc") if digits.is_number(name)]
    children: Dict[int, List[Process]] = {}
    for process in processes:
        if process is not None:
            children.setdefault(process.parent, []).append(process)
    return {root: _below(root, children) for root in roots}


def _below(root: int, children: Dict[int, List[Process]]) -> List[Process]:
    found: List[Process] = []
    seen: Set[int] = {root}
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child.pid not in seen:
                seen.add(child.pid)
                found.append(child)
                waiting.append(child.pid)
    return found


def usage(pid: int) -> Dict[str, float]:
    """Return the most bytes of memory and the processor time that a process has used; empty if it is gone."""
    used: Dict[str, float] = {}
    for line in _text(pid, "status").splitlines():  # VmHWM:   320204 kB
        words = line.split()
        if words[:1] == ["VmHWM:"] and len(words) > 1 and digits.is_number(words[1]):
            used["peak_resident_bytes"] = int(words[1]) * 1024.0
    process = read(pid) if used else None
    return {**used, "cpu_seconds": process.ticks / CLOCK_TICKS} if process is not None else used


def io_bytes(pid: int) -> int:
    """Return how much a process has read and written so far."""
    total = 0
    for line in _text(pid, "io").splitlines():  # rchar: 4292
        name, _, number = line.partition(": ")
        if name in ("rchar", "wchar", "read_bytes", "write_bytes"):
            total += digits.whole(number)
    return total


def catches(pid: int, number: int) -> bool:
    """Say whether a process has a handler for a signal; without one, most signals would end it."""
    for line in _text(pid, "status").splitlines():  # SigCgt:	0000000180004202
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def facts(pid: int) -> Dict[str, Any]:
    """Return what the kernel says about a process; files that may not be read give nothing."""
    process = read(pid)
    wchan = _text(pid, "wchan").strip()
    return {
        "state": process.state if process is not None else "",
        "wchan": "" if wchan == "0" else wchan,
        "syscall": _text(pid, "syscall").strip(),
        "kernel_stack": _text(pid, "stack").strip(),
        "name": _text(pid, "comm").strip(),
    }


def _text(pid: int, name: str) -> str:
    try:
        with open("/proc/%d/%s" % (pid, name), encoding="utf-8", errors="replace") as file:
            return file.read(_LARGEST_BYTES)
    except OSError:
        return ""
