"""Sample the cores, the memory and the network of a node."""

import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ....topology import files
from . import nics
from .kept_file import KeptFile

_STAT_BYTES = 1 << 20  # some thousand interrupts follow the cores
_NUM_TIMES = 8  # user nice system idle iowait irq softirq steal; time of guests is part of user's
_IDLE = slice(3, 5)
_KIBIBYTE = 1024


class HostReader:
    """The files of a node: its memory is looked at in each sample, counters only when a row is asked for."""

    def __init__(self, root: str, cpus: Sequence[int], now: float) -> None:
        self._cpus = {b"cpu%d" % cpu for cpu in cpus}
        self._stat = KeptFile(os.path.join(root, "proc/stat"), _STAT_BYTES)
        self._meminfo = KeptFile(os.path.join(root, "proc/meminfo"))
        self._nics = nics.readers(root)
        self._times = self._cpu_times()
        self._began = self._told = now
        self._memory: Tuple[Optional[int], Optional[int]] = (None, None)
        self._memory_most = 0

    def look(self) -> None:
        """Take a sample."""
        self._memory = self._used_memory()
        self._memory_most = max(self._memory_most, self._memory[0] or 0)

    def row(self, now: float) -> Dict[str, Any]:
        """Return the last sample, and the means since the last row; what is not known is left out.

        `now` is in seconds of a clock that is never set.
        """
        seconds, self._told = now - self._told, now
        before, self._times = self._times, self._cpu_times()
        used, whole = self._memory
        fields = {
            "seconds": round(now - self._began, 1),
            "cpus": len(self._cpus) if self._times is not None else None,
            "cpu_percent": _busy_percent(before, self._times),
            "memory_used_bytes": used,
            "memory_used_most_bytes": self._memory_most or None,
            "memory_bytes": whole,
            "nics": (nics.rows(self._nics, seconds) if seconds > 0 else None) or None,
        }
        return {name: value for name, value in fields.items() if value is not None}

    @property
    def sees_nothing(self) -> bool:
        """Say whether no file of this node could be read."""
        return self._times is None and self._memory[1] is None and not self._nics

    def _cpu_times(self) -> Optional[Tuple[int, int]]:
        """Return the idle and the whole time of the run's cores together, in ticks of the kernel."""
        idle = whole = 0
        for line in (self._stat.read() or b"").splitlines():
            name, _, rest = line.partition(b" ")  # cpu3 4705 356 584 3699 23 23 0 0 0 0
            if not name.startswith(b"cpu"):
                break
            if name in self._cpus:
                times = _numbers(rest.split()[:_NUM_TIMES])
                whole += sum(times)
                idle += sum(times[_IDLE])
        return (idle, whole) if whole else None

    def _used_memory(self) -> Tuple[Optional[int], Optional[int]]:
        """Return the memory that is neither free nor soon to be had, and the whole memory, in bytes."""
        sizes: Dict[bytes, int] = {}
        for line in (self._meminfo.read() or b"").split(b"\n", 3)[:3]:  # MemTotal, MemFree, MemAvailable
            name, _, rest = line.partition(b":")
            words = rest.split() or [b""]
            sizes[name] = files.number(words[0].decode("ascii", "replace")) * _KIBIBYTE
        whole, available = sizes.get(b"MemTotal", 0), sizes.get(b"MemAvailable", -1)
        if whole <= 0:
            return None, None
        return (whole - available if 0 <= available <= whole else None), whole


def _numbers(words: Sequence[bytes]) -> List[int]:
    try:
        return list(map(int, words))  # a node may have two thousand of these
    except ValueError:
        return []


def _busy_percent(before: Optional[Tuple[int, int]], now: Optional[Tuple[int, int]]) -> Optional[float]:
    if before is None or now is None:
        return None
    idle, whole = now[0] - before[0], now[1] - before[1]
    return round(100 * (whole - idle) / whole, 1) if 0 <= idle <= whole and whole > 0 else None
