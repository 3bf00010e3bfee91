"""Count the CPU seconds of everything that this process starts, whoever its parent becomes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import time
from collections.abc import Iterator
from typing import Protocol

SETTLE_SECONDS = 5.0
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Account(Protocol):
    """Where CPU time is counted."""

    sees_daemons: bool
    """Whether processes are counted that are children of somebody else's, as Slurm's tasks are."""

    def cpu_seconds(self) -> float:
        """Return what all others have used so far; only differences mean something."""
        ...

    def processes(self) -> set[int]:
        """Return who is counted and alive, without this process."""
        ...


class ControlGroup:
    """A control group of our own: the kernel counts what happens in it, to the nanosecond."""

    sees_daemons = True

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._is_v2 = os.path.exists(os.path.join(folder, "cpu.stat"))

    def cpu_seconds(self) -> float:
        return self._total() - time.process_time()

    def _total(self) -> float:
        if not self._is_v2:
            return int(_read(os.path.join(self.folder, "cpuacct.usage"))) / 1e9
        fields = dict(line.split() for line in _read(os.path.join(self.folder, "cpu.stat")).splitlines())
        return int(fields["usage_usec"]) / 1e6

    def processes(self) -> set[int]:
        pids = _read(os.path.join(self.folder, "cgroup.procs")).split()
        return {int(pid) for pid in pids} - {os.getpid()}


class Reaper:
    """Without control groups: the kernel's sum over the ended children, orphans handed to us included.

    A descendant counts once its parent has waited for it. Complete for torchrun and echelon (checked against a
    control group), blind for Slurm's tasks, whose parent is slurmd.
    """

    sees_daemons = False

    def __init__(self) -> None:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def cpu_seconds(self) -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    def processes(self) -> set[int]:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        return {int(pid) for pid in _read(f"/proc/self/task/{os.getpid()}/children").split()}


@contextlib.contextmanager
def opened() -> Iterator[Account]:
    """Move this process to a control group for the time being, or do the best without one."""
    parent = _parent_group()
    folder = os.path.join(parent, f"benchmark-{os.getpid()}")
    try:
        os.mkdir(folder)
    except OSError:
        yield Reaper()
        return
    try:
        _write_pid(folder)
        yield ControlGroup(folder)
    finally:
        _write_pid(parent)
        with contextlib.suppress(OSError):  # a process that outlives us keeps it
            os.rmdir(folder)


def settle(account: Account, before: set[int]) -> None:
    """Wait until all that was started since has ended, so that its CPU time is complete."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while account.processes() - before and time.monotonic() < deadline:
        time.sleep(0.01)


def _parent_group() -> str:
    """Return the folder of the control group that this process is in, where CPU time is counted."""
    # 2:cpuacct:/   or, in version 2,   0::/user.slice
    ours = {kind: path for _, kind, path in (line.split(":", 2) for line in _read("/proc/self/cgroup").splitlines())}
    for line in _read("/proc/mounts").splitlines():
        _, folder, kind, options, *_ = line.split()
        for controllers, path in ours.items():
            if "cpuacct" in controllers.split(",") and kind == "cgroup" and "cpuacct" in options.split(","):
                return folder + path
            if ours.keys() == {""} and kind == "cgroup2":
                return folder + path
    return "/nonexistent"


def _write_pid(folder: str) -> None:
    with open(os.path.join(folder, "cgroup.procs"), "w") as file:
        file.write(str(os.getpid()))


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
