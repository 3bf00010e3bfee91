"""Put what runs on compute nodes into a run directory, as one zip that any python3 can start.

The zip is packed once per installation and kept in the user's cache: a run copies it, and never loads zipfile.
"""

from __future__ import annotations

import os
import sys

_ROOMS = ("node", "topology", "environment", "train")


def write(path: str) -> None:
    """Write node.pyz, from the cache where it is there."""
    content = _kept() or _packed()
    with open(path, "wb") as file:
        file.write(content)


def sources() -> list[str]:
    """Return the files that go into the zip."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folders = [os.path.join(here, room) for room in _ROOMS]
    return [
        os.path.join(folder, name) for folder in folders for name in sorted(os.listdir(folder)) if name.endswith(".py")
    ]


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
        pass  # a home that is full or read-only costs the next run 10 ms
    return content


def _cache_path() -> str:
    """Return the name for exactly these sources and this interpreter."""
    from binascii import crc32

    stats = [(path, os.stat(path)) for path in sources()]
    state = ";".join(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    key = crc32(f"{sys.version} {state}".encode("utf-8", "surrogateescape"))
    return os.path.join(base, "echelon", f"node-{sys.implementation.cache_tag}-{key:08x}.pyz")
