"""Give node names an address in the hosts file, and take them away again."""

import fcntl
import os
from collections.abc import Callable, Mapping
from pathlib import Path

HOSTS = Path("/etc/hosts")
MARK = "# private-slurm"


def add(names: Mapping[str, str], owner_pid: int, hosts: Path = HOSTS) -> None:
    """Add one marked line a name, which `remove` finds again by the owner's process id."""
    lines = [f"{address} {name} {MARK} {owner_pid}\n" for name, address in names.items()]
    _rewrite(hosts, lambda kept: [*kept, *lines])


def remove(owner_pid: int, hosts: Path = HOSTS) -> None:
    """Remove the owner's lines; every other line stays as it is."""
    _rewrite(hosts, lambda kept: [line for line in kept if _owner(line) != owner_pid])


def _rewrite(hosts: Path, change: Callable[[list[str]], list[str]]) -> None:
    # Written in place: in a container the file is a bind mount and cannot be replaced.
    with hosts.open("r+", newline="") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = file.read()
        if text and not text.endswith("\n"):
            text += "\n"
        after = "".join(change([line for line in text.splitlines(keepends=True) if not _is_stale(line)]))
        file.seek(0)
        file.write(after)
        file.truncate()


def _owner(line: str) -> int:
    _, marked, owner = line.partition(MARK)
    return int(owner) if marked else 0


def _is_stale(line: str) -> bool:
    owner = _owner(line)
    return bool(owner) and not os.path.exists(f"/proc/{owner}")
