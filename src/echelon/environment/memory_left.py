"""How much memory of the host is left for a process."""

import os
from typing import Iterator, List, Optional

_NO_LIMIT = 1 << 60


def available_bytes(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """Return the memory that this process may still take: of the machine, and of the cgroup of its job."""
    rows = _rows(os.path.join(proc, "meminfo"))
    machine = next((int(row.split()[1]) << 10 for row in rows if row.startswith("MemAvailable:")), _NO_LIMIT)
    limits = [_left_in(folder) for folder in _cgroup_folders(proc, cgroups)]
    return max(0, min([machine, *limits]))


def _rows(path: str) -> List[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _cgroup_folders(proc: str, cgroups: str) -> Iterator[str]:
    """Yield the folders of this process's cgroup and of all above it, of version 2 or 1."""
    for row in _rows(os.path.join(proc, "self", "cgroup")):
        _, controllers, path = (*row.split(":", 2), "", "")[:3]
        if controllers not in ("", "memory"):
            continue
        root = os.path.join(cgroups, controllers)
        inner = path.strip("/")
        while True:
            yield os.path.join(root, inner)
            if not inner:
                break
            inner = os.path.dirname(inner)


def _left_in(folder: str) -> int:
    """Return what is left of a cgroup's limit; memory of files that the kernel can drop counts as left."""
    limit, used = (
        _number(folder, "memory.max", "memory.limit_in_bytes"),
        _number(folder, "memory.current", "memory.usage_in_bytes"),
    )
    if limit is None or used is None:
        return _NO_LIMIT
    rows = [row.split() for row in _rows(os.path.join(folder, "memory.stat"))]
    dropped = [int(row[1]) for row in rows if len(row) == 2 and row[0] in ("inactive_file", "total_inactive_file")]
    return limit - used + max(dropped, default=0)


def _number(folder: str, *names: str) -> Optional[int]:
    for name in names:
        rows = _rows(os.path.join(folder, name))
        if rows:
            try:
                return int(rows[0])
            except ValueError:
                return None  # "max": there is no limit
    return None
