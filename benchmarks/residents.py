"""Look at the processes of a launcher through /proc."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from benchmarks.meter import BenchmarkError

KIBIBYTE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """One process that stays while the ranks run."""

    pid: int
    role: str
    cpu_seconds: float
    rss_bytes: int
    pss_bytes: int
    private_bytes: int
    has_torch: bool


def of_supervisor(pid: int) -> list[Resident]:
    """Return a supervisor, its agent and the agent's guard; neither ranks nor what forks them.

    The guard has left the tree of the supervisor on purpose: the agent's archive in its command line gives it away.
    """
    archives = {word for child in _descendants(pid) for word in _command_line(child) if word.endswith("/node.pyz")}
    started = [each for each in _processes() if archives & set(_command_line(each))]
    agents = [each for each in started if int(_stat(each)[1]) == pid]
    guards = [each for each in started if each not in agents]
    if len(archives) != 1 or len(agents) != 1 or len(guards) != 1:
        raise BenchmarkError(f"one agent and one guard were expected below {pid}, found {agents} and {guards}")
    return [_resident(pid, "supervisor"), _resident(agents[0], "agent"), _resident(guards[0], "guard")]


def of_node(pid: int) -> list[Resident]:
    """Return the processes of echelon on the one node of a run: the agent, its guard and its lookout.

    The lookout comes last; there is none until its agent has started it.
    """
    archives = {word for child in _descendants(pid) for word in _command_line(child) if word.endswith("/node.pyz")}
    started = [each for each in _processes() if archives & set(_command_line(each))]
    lookouts = [each for each in started if "lookout" in _command_line(each)]
    if len(archives) != 1 or len(started) != 3 or len(lookouts) != 1:
        raise BenchmarkError(f"an agent, a guard and a lookout were expected below {pid}, found {started}")
    agent = int(_stat(lookouts[0])[1])
    roles = {agent: "agent", lookouts[0]: "lookout"}
    ours = [_resident(each, roles.get(each, "guard")) for each in started]
    return sorted(ours, key=lambda resident: resident.role)


def of_torchrun(pid: int) -> list[Resident]:
    """Return torchrun's agent, which is the process that was started."""
    return [_resident(pid, "torchrun's agent")]


def _resident(pid: int, role: str) -> Resident:
    sizes: dict[str, int] = {}
    for line in _read(pid, "smaps_rollup").splitlines()[1:]:
        name, size, _ = line.split()  # Pss:     4321 kB
        sizes[name] = int(size) * KIBIBYTE
    return Resident(
        pid=pid,
        role=role,
        cpu_seconds=_cpu_seconds(pid),
        rss_bytes=sizes["Rss:"],
        pss_bytes=sizes["Pss:"],
        private_bytes=sizes["Private_Clean:"] + sizes["Private_Dirty:"],
        has_torch="/torch/" in _read(pid, "maps"),
    )


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of the children that it has waited for."""
    ended_children = _stat(pid)[13:15]  # cutime and cstime, fields 16 and 17 of proc(5); the state is field 3
    return own_cpu_seconds(pid) + sum(int(ticks) for ticks in ended_children) / os.sysconf("SC_CLK_TCK")


def own_cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads that a process has or had."""
    return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED, as clock_getcpuclockid(3) computes it


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _descendants(pid: int) -> list[int]:
    parents = {each: int(fields[1]) for each in _processes() if (fields := _stat(each))}
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def _stat(pid: int) -> list[str]:
    # 4242 (a name) S 1 4242 …: the name may hold anything, so the fields are counted from its end
    return _read(pid, "stat").rpartition(")")[2].split()


def _command_line(pid: int) -> list[str]:
    return _read(pid, "cmdline").split("\0")


def _read(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}") as file:
            return file.read()
    except OSError:
        return ""  # it has just ended
