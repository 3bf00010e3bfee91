"""How much memory of the host is left for a process."""

import os
from typing import List

from ..hardware import files

_NO_LIMIT = 1 << 60


def available_bytes(root: str = "/") -> int:
    """Return the memory that this process may still take: of the machine, and of the cgroup of its job."""
    rows = _rows(root, "proc/meminfo")
    machine = next((int(row[1]) << 10 for row in rows if row[0] == "MemAvailable:"), _NO_LIMIT)
    limits = [_left_in(folder) for folders in files.cgroups("memory", root) for folder in folders]
    return max(0, min([machine, *limits]))


def _rows(folder: str, name: str) -> List[List[str]]:
    rows = (line.split() for line in files.text(os.path.join(folder, name)).splitlines())
    return [row for row in rows if len(row) > 1]


def _left_in(folder: str) -> int:
    """Return what is left of a cgroup's limit; memory of files that the kernel can drop counts as left."""
    limit = _number(folder, "memory.max", "memory.limit_in_bytes")
    used = _number(folder, "memory.current", "memory.usage_in_bytes")
    if limit < 0 or used < 0:
        return _NO_LIMIT
    dropped = [
        int(row[1]) for row in _rows(folder, "memory.stat") if row[0] in ("inactive_file", "total_inactive_file")
    ]
    return limit - used + max(dropped, default=0)


def _number(folder: str, *names: str) -> int:
    """Return the number of the first of the files that is there; -1: there is none, or "max", no limit."""
    return files.number(next(filter(None, (files.text(os.path.join(folder, name)) for name in names)), ""))
