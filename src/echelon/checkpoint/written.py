"""Files that are on the disk when they are closed, with a checksum that is computed while they are written.

A log beside the checkpoints: the paths that the script has written, a JSON object a line.

A killed run has written files after its last checkpoint, and only this log knows them.
"""

import json
import os
from types import TracebackType
from typing import Any

from . import manifest
from .errors import writing
from .manifest import WrittenFile

_PART_BYTES = 8 << 20
Content = bytes | bytearray | memoryview


class HashedFile:
    """A file of a checkpoint, for a `with`: written, hashed, and on the disk when the block ends.

    `written` is its size and checksum afterwards. Raises WriteError if the file system refuses.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.written = WrittenFile(0, "")
        self._hashed: Any = manifest.hasher()
        self._num_bytes = 0
        with writing(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(path, flags, 0o600)

    def write(self, content: Any) -> None:
        """Write bytes, or anything that has a buffer."""
        rest = memoryview(content)
        if rest.ndim != 1 or rest.itemsize != 1:
            rest = rest.cast("B")
        with writing(self.path):
            while len(rest):
                num_bytes = os.write(self._descriptor, rest[:_PART_BYTES])
                self._hashed.update(rest[:num_bytes])
                self._num_bytes += num_bytes
                rest = rest[num_bytes:]

    def __enter__(self) -> "HashedFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with writing(self.path):
                if kind is None:
                    os.fsync(self._descriptor)
                    self.written = WrittenFile(self._num_bytes, manifest.checksum_of(self._hashed))
        finally:
            os.close(self._descriptor)


def write_file(path: str, content: Content) -> WrittenFile:
    with HashedFile(path) as file:
        file.write(content)
    return file.written


def fsync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(log: str, path: str, *, was_there: bool) -> None:
    """Add a path, and whether it was there before the script wrote it; raise WriteError if that is impossible."""
    line = json.dumps({"path": path, "was_there": was_there}).encode() + b"\n"
    with writing(log):
        os.makedirs(os.path.dirname(log), exist_ok=True)
        with open(log, "a+b") as file:
            file.write((b"\n" if _is_torn(file) else b"") + line)


def read(log: str) -> list[tuple[str, bool]]:
    """Return the paths, each with whether it was there before; none if there is no log, or if it cannot be read."""
    if not os.path.isfile(log):
        return []
    try:
        with open(log, "rb") as file:
            return [entry for line in file if (entry := _entry(line)) is not None]
    except OSError:
        return []


def _is_torn(file: Any) -> bool:
    """Say whether a killed process, or a full disk, has left half a line at the end."""
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) != b"\n")


def _entry(line: bytes) -> tuple[str, bool] | None:
    """Return what a line says; None for a part of a line, or one that was altered."""
    try:
        entry = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        return None
    return entry["path"], bool(entry.get("was_there"))
