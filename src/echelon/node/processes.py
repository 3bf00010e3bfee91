"""Processes as the kernel shows them: state, ended children, a stopped agent, a killed slurmstepd, lack of memory.

Find whether this process has started a device's driver: a fork of it cannot use the device then.

NVML only reads, and a fork is safe after it. But since driver 580, NVML also opens /dev/nvidia-uvm and keeps a thread
(seen with driver 580.159 on an H200), so that files and threads do not tell it from CUDA. CUDA's own library does.
"""

import os
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from ..environment import digits
from ..hardware import files, vendors

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "in a wait that no signal ends", "Z": "dead"}
_MOST_THREADS = 64


class Process(NamedTuple):
    """A process with what it has used so far."""

    pid: int
    parent: int
    session: int
    state: str
    ticks: int


def read(pid: int) -> Optional[Process]:
    text = _text(pid, "stat")
    if ")" not in text:
        return None
    # 4242 (a name) S 1 4242 4242 …: state, parent, group, session follow the last parenthesis; the times are 14 and 15
    fields = text[text.rindex(")") + 2 :].split()
    return Process(pid, int(fields[1]), int(fields[3]), fields[0], int(fields[11]) + int(fields[12]))


def table() -> List[Process]:
    """Return all processes of this node, also the dead ones that nobody has waited for."""
    processes = (read(int(name)) for name in os.listdir("/proc") if digits.is_number(name))
    return [process for process in processes if process is not None]


def descendants(roots: Iterable[int], among: Optional[List[Process]] = None) -> Dict[int, List[Process]]:
    """Return the living and dead descendants of each root, now or in a table."""
    children: Dict[int, List[Process]] = {}
    for process in table() if among is None else among:
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


_OF_STATUS = {
    "VmHWM:": "peak_resident_bytes",
    "RssAnon:": "anonymous_bytes",
    "RssShmem:": "shared_bytes",
    "Threads:": "os_threads",
}


def usage(pid: int) -> Dict[str, float]:
    """Return what a process has used of the node, memory in bytes, and its limit of open files; empty if it is gone.

    Pages of files, which the kernel can drop, are in the peak of resident memory alone.
    """
    used: Dict[str, float] = {}
    for line in _text(pid, "status").splitlines():  # VmHWM:   320204 kB
        words = line.split()
        if words and words[0] in _OF_STATUS and digits.is_number(words[1]):
            used[_OF_STATUS[words[0]]] = int(words[1]) * (1024.0 if words[-1] == "kB" else 1.0)
    process = read(pid) if "peak_resident_bytes" in used else None
    if process is None:
        return {}
    own = used.pop("anonymous_bytes", 0.0) + used.pop("shared_bytes", 0.0)
    return {**used, **_open_files(pid), "own_bytes": own, "cpu_seconds": process.ticks / CLOCK_TICKS}


def _open_files(pid: int) -> Dict[str, float]:
    limits = [line.split() for line in _text(pid, "limits").splitlines() if line.startswith("Max open files")]
    try:
        number = len(os.listdir("/proc/%d/fd" % pid))
    except OSError:
        return {}
    is_limited = bool(limits) and digits.is_number(limits[0][3])  # Max open files   1024   524288   files
    return {"open_files": float(number), **({"open_files_limit": float(limits[0][3])} if is_limited else {})}


def waits(pid: int) -> Dict[str, float]:
    """Return how long the main thread of a process was on a core, and waited for one or for a disk, so far.

    With it are the seconds of its other threads on cores, the pages that the process had to read from a disk, and how
    long its cgroup has not let it run.
    """
    fields = _text(pid, "stat").rpartition(")")[2].split()
    times = _text(pid, "schedstat").split()  # 8142381 102233 57: on a core, waiting for one, how often
    if len(fields) < 40 or len(times) < 2:
        return {}
    core_seconds = int(times[0]) / 1e9
    all_seconds = (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
    return {
        "core_seconds": core_seconds,
        "beside_seconds": max(0.0, all_seconds - core_seconds),
        "core_wait_seconds": int(times[1]) / 1e9,
        "major_faults": float(fields[9]),  # majflt and delayacct_blkio_ticks are the fields 12 and 42
        "disk_wait_seconds": int(fields[39]) / CLOCK_TICKS,
        "throttled_seconds": throttled_seconds(str(pid)),
    }


def wait_of_threads(pid: int) -> float:
    """Return how long the threads of a process have waited for a core, so far; only the first ones of very many."""
    try:
        threads = os.listdir("/proc/%d/task" % pid)[:_MOST_THREADS]
    except OSError:
        return 0.0
    times = [_text(pid, "task/%s/schedstat" % thread).split() for thread in threads]
    return sum(int(words[1]) for words in times if len(words) > 1) / 1e9


def io_bytes(pid: int) -> int:
    """Return how much a process has read and written so far."""
    numbers = files.fields("/proc/%d/io" % pid)
    return sum(digits.whole(numbers.get(name, "")) for name in ("rchar", "wchar", "read_bytes", "write_bytes"))


def catches(pid: int, number: int) -> bool:
    """Say whether a process has a handler for a signal; without one, most signals would end it."""
    return has_signal(pid, "SigCgt", number)


def has_signal(pid: int, name: str, number: int) -> bool:
    """Say whether a signal is in a set of a process: `SigCgt:	0000000180004202`."""
    return bool(int(files.fields("/proc/%d/status" % pid).get(name, "0"), 16) >> (number - 1) & 1)


def facts(pid: int) -> Dict[str, Any]:
    """Return what the kernel says about a process; files that may not be read give nothing."""
    process = read(pid)
    wchan = _text(pid, "wchan")
    return {
        "state": process.state if process is not None else "",
        "wchan": "" if wchan == "0" else wchan,
        "syscall": _text(pid, "syscall"),
        "kernel_stack": _text(pid, "stack"),
        "name": _text(pid, "comm"),
    }


def _text(pid: int, name: str) -> str:
    return files.text("/proc/%d/%s" % (pid, name))


def words(pid: int, name: str) -> List[bytes]:
    """Return the words of a process's `cmdline` or `environ`; none if they may not be read."""
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def ended() -> Iterator[Tuple[int, int]]:
    """Wait for every ended child; yield its process id and exit code, or minus the signal that ended it."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


STOPPED_SECONDS = 5.0
PAUSE_SECONDS = 3.0  # between two looks: then this process was stopped too, as by `scontrol suspend`


class HaltWatch:
    """How long a process has been stopped."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: Optional[float] = None
        self._last = clock()

    def is_frozen(self, pid: int) -> bool:
        """Look at the process, at least once a second; say whether it has been stopped for too long."""
        now = self._clock()
        was_paused, self._last = now - self._last > PAUSE_SECONDS, now
        process = read(pid)
        if process is None or process.state != "T":
            self._since = None
        elif self._since is None or was_paused:
            self._since = now
        return self._since is not None and now - self._since >= STOPPED_SECONDS


DEVICE_FILES = tuple(dict.fromkeys(path for vendor in vendors.ALL for path in vendor.driver_files))
"""The files that a running driver has open."""
NVML_THREADS = "cuda"  # the names of NVML's threads begin with this, as those of CUDA do
_OF_CUDA = "/dev/nvidia-uvm"
_NOT_INITIALIZED = 3  # CUDA_ERROR_NOT_INITIALIZED, of every function of cuda.h that precedes cuInit()


def open_files() -> List[str]:
    """Return the device files that a driver in this process has open; those of NVML do not count."""
    paths = set()
    for descriptor in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            paths.add(os.readlink("/proc/self/fd/" + descriptor))
        except OSError:
            continue  # the descriptor of this listdir()
    opened = sorted(path for path in paths if path.startswith(DEVICE_FILES))
    if any(path.startswith(_OF_CUDA) for path in opened) and not has_cuda_begun():
        return [path for path in opened if not path.startswith(_OF_CUDA)]
    return opened


def has_cuda_begun() -> bool:
    """Say whether cuInit() has run in this process; the library is asked, and not loaded for that."""
    try:
        import ctypes  # some Pythons have none

        library = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except (ImportError, OSError):
        return False
    return library.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED  # type: ignore[no-any-return]


WHY = "slurmstepd, which runs the agent for Slurm, was killed"
_INIT = 1


class Parent:
    """The process that started this agent."""

    def __init__(self, pid: Optional[int]) -> None:
        self._pid = pid  # None: not watched

    @classmethod
    def of_this(cls, is_step: bool) -> "Parent":
        """Watch the parent of this process, if it is a task of Slurm; a container may hide the parent."""
        pid = os.getppid()
        return cls(pid if is_step and pid > _INIT else None)

    def has_died(self) -> bool:
        """Say so once."""
        if self._pid is None or os.getppid() == self._pid:
            return False
        self._pid = None
        return True


def oom_kills() -> int:
    """Return how many processes of this cgroup and its ancestors were killed; 0 if there are no counters."""
    paths = _counters("self", "memory", "memory.events", "memory.oom_control")  # of version 2, and of version 1
    return max([_count(path, "oom_kill") for path in paths], default=0)


def throttled_seconds(process: str) -> float:
    """Return how long the cgroup of a process, or one around it, had used up its share of cores; 0: no counters."""
    units = (("throttled_usec", 1e6), ("throttled_time", 1e9))  # of version 2 and of version 1
    paths = _counters(process, "cpu", "cpu.stat")
    return max([_count(path, name) / unit for path in paths for name, unit in units], default=0.0)


def _counters(process: str, controller: str, *names: str) -> List[str]:
    folders = [folder for folders in files.cgroups(controller, process=process) for folder in folders]
    return [os.path.join(folder, name) for folder in folders for name in names]


def _count(path: str, counter: str) -> int:
    # memory.events has the line "oom_kill 1" among others; memory.oom_control has the same line
    for line in files.text(path).splitlines():
        name, _, value = line.partition(" ")
        if name == counter and digits.is_number(value):
            return int(value)
    return 0
