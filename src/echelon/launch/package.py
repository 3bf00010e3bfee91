"""Put what runs on compute nodes into a run directory, as one zip that any python3 can start.

The zip is packed once per installation and kept in the user's cache: a run copies it, and never loads zipfile.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator

from echelon import __version__
from echelon.node import private
from echelon.spec import RUNS

NUM_LOOKED_AT = 3  # earlier runs in the same folder
_ROOMS = (
    "node", "topology", "environment", "hardware", "checkpoint", "train", "tracing", "bandwidth", "pytorch", "orders",
)  # fmt: skip
_ALONE = ("errors",)  # beside the rooms


def write(path: str) -> None:
    """Write node.pyz, from the cache if it is there."""
    content = _kept() or _packed()
    if not _is_there(path, content) and not _linked(path, content):
        private.write(path, content)


def cached() -> str:
    """Return the path of the zip in the user's cache, which all nodes see as they see the user's home."""
    path = _cache_path()
    if not _kept():
        _packed()
    return path


def _is_there(path: str, content: bytes) -> bool:
    """Say whether the supervisor before this one has written it: on a full disk it could not be written again."""
    try:
        with open(path, "rb") as file:
            return file.read() == content
    except OSError:
        return False


def _linked(path: str, content: bytes) -> bool:
    """Link node.pyz to an equal file of an earlier run: so few run directories take 3 MB."""
    runs = os.path.dirname(os.path.dirname(path))
    if os.path.basename(runs) != RUNS:
        return False
    for run in sorted(os.listdir(runs), reverse=True)[: 1 + NUM_LOOKED_AT]:
        earlier = os.path.join(runs, run, os.path.basename(path))
        try:
            status = os.lstat(earlier)
            if status.st_uid != os.geteuid() or status.st_size != len(content) or not stat.S_ISREG(status.st_mode):
                continue
            with open(earlier, "rb") as file:
                if file.read() != content:
                    continue
            os.link(earlier, path)
        except OSError:
            continue  # the file was removed, or this file system has no links
        return True
    return False


def sources() -> dict[str, str]:
    """Return the files of the zip by their names inside: node/agent."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    modules = {name: path for room in _ROOMS for name, path in _modules(os.path.join(here, room), room)}
    return {**modules, **{name: os.path.join(here, f"{name}.py") for name in _ALONE}}


def _modules(folder: str, package: str) -> Iterator[tuple[str, str]]:
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.endswith(".py"):
            yield f"{package}/{name[:-3]}", path
        elif not name.startswith(("_", ".")) and os.path.isdir(path):
            yield from _modules(path, f"{package}/{name}")


def _kept() -> bytes:
    try:
        with open(_cache_path(), "rb") as file:
            return file.read() if os.fstat(file.fileno()).st_uid == os.geteuid() else b""
    except OSError:
        return b""


def _packed() -> bytes:
    from echelon.launch import packing

    content = packing.pack(sources())
    try:
        packing.keep(content, _cache_path())
    except OSError:
        pass  # with a full or read-only home, the next run packs again, which takes 10 ms
    return content


def _cache_path() -> str:
    """Return the cache path for exactly these sources and this interpreter."""
    from binascii import crc32

    stats = [(path, os.stat(path)) for path in sources().values()]
    state = f"{__version__};" + ";".join(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    key = crc32(f"{sys.version} {state}".encode("utf-8", "surrogateescape"))
    return os.path.join(base, "echelon", f"node-{sys.implementation.cache_tag}-{key:08x}.pyz")
