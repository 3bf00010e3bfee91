"""What lies in a folder or file that is staged, and the stream of tar that brings it, or what changed, to the nodes."""

from __future__ import annotations

import json
import os
import stat
import tarfile
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from echelon.errors import UsageError
from echelon.node.staged_copy import digest_of
from echelon.node.staging import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Rewrite = Callable[[bytes], bytes]
    """Return the content of a small file as nodes shall have it."""

_OF_PREFIX = (".pth", ".egg-link", ".cfg", ".pc", ".sh", ".csh", ".fish", ".json", ".la")
_LARGEST_REWRITTEN_BYTES = 1 << 20
READ_ONLY = 0o555


@dataclass(frozen=True, slots=True)
class Entry:
    """A file ("f"), folder ("d") or symbolic link ("l")."""

    kind: str
    size: int
    stamp: int
    """The time of the last change in ns; 0 for a folder."""
    mode: int
    target: str = ""
    """That of a link, as nodes shall have it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """All entries below a source, by their paths, which begin with the name of the source itself."""

    root: str
    """The folder that the paths are relative to."""
    entries: Mapping[str, Entry]

    @property
    def text(self) -> str:
        """One line an entry; two sources with equal texts have the same content."""
        return "".join(
            json.dumps([path, e.kind, e.size, e.stamp, e.mode, e.target], separators=(",", ":")) + "\n"
            for path, e in self.entries.items()
        )

    @property
    def digest(self) -> str:
        return digest_of(self.text)

    @property
    def num_files(self) -> int:
        return sum(entry.kind == "f" for entry in self.entries.values())

    @property
    def size(self) -> int:
        return size_of(self.entries)


def size_of(entries: Mapping[str, Entry]) -> int:
    """Return the bytes that entries take on a disk, whose blocks have 4 KiB."""
    return sum(-(-entry.size // 4096) * 4096 if entry.kind == "f" else 4096 for entry in entries.values())


def read(source: str, moved_to: str = "") -> Manifest:
    """List a folder or a file; links that lead out of it become absolute, absolute ones into it lead to `moved_to`.

    Raise UsageError for what cannot be read.
    """
    root, name = os.path.split(source)
    entries: dict[str, Entry] = {}
    try:
        for path, status in _walk(source):
            inner = name + path[len(source) :]
            if stat.S_ISDIR(status.st_mode):
                entries[inner] = Entry("d", 0, 0, status.st_mode & READ_ONLY | 0o500)
            elif stat.S_ISREG(status.st_mode):
                entries[inner] = Entry("f", status.st_size, status.st_mtime_ns, status.st_mode & READ_ONLY | 0o400)
            elif stat.S_ISLNK(status.st_mode):
                entries[inner] = Entry("l", 0, 0, 0o777, _target(path, source, moved_to))
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}", hint="stage what you can read") from None
    return Manifest(root, entries)


def _walk(source: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield each path with its status, a folder before what it holds."""
    waiting = [source]
    while waiting:
        path = waiting.pop()
        status = os.lstat(path)
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(path) as inside:
                waiting += sorted((entry.path for entry in inside), reverse=True)


def _target(path: str, source: str, moved_to: str) -> str:
    target = os.readlink(path)
    whole = os.path.normpath(os.path.join(os.path.dirname(path), target))
    is_inside = whole == source or whole.startswith(source + os.sep)
    if is_inside:
        return moved_to + whole[len(source) :] if os.path.isabs(target) and moved_to else target
    return whole


def parse(text: str) -> dict[str, Entry]:
    """Read the text of a manifest."""
    return {line[0]: Entry(*line[1:]) for line in map(json.loads, text.splitlines())}


def stream(manifest: Manifest, wanted: Mapping[str, Entry], rewrite: Rewrite | None) -> Iterator[bytes]:
    """Yield the tar of the wanted entries, the whole manifest first, in pieces of about PIECE_BYTES."""
    whole = manifest.text.encode("utf-8", "surrogateescape")
    header = tarfile.TarInfo("manifest")
    header.size = len(whole)
    waiting = bytearray(_block(header) + whole + _padding(len(whole)))
    for path, entry in wanted.items():
        header = tarfile.TarInfo(path)
        header.mode, header.mtime, header.linkname = entry.mode, entry.stamp // 10**9, entry.target
        header.type = {"f": tarfile.REGTYPE, "d": tarfile.DIRTYPE, "l": tarfile.SYMTYPE}[entry.kind]
        if entry.kind != "f":
            waiting += _block(header)
            continue
        content = _content(os.path.join(manifest.root, path), entry)
        if rewrite is not None and _may_name_prefix(path, entry):
            changed = rewrite(b"".join(content))
            content, header.size = iter([changed]), len(changed)
        else:
            header.size = entry.size
        waiting += _block(header)
        for piece in content:
            waiting += piece
            if len(waiting) >= PIECE_BYTES:
                yield bytes(waiting)
                waiting.clear()
        waiting += _padding(header.size)
        if len(waiting) >= PIECE_BYTES:
            yield bytes(waiting)
            waiting.clear()
    yield bytes(waiting + bytes(2 * tarfile.BLOCKSIZE))


def _content(path: str, entry: Entry) -> Iterator[bytes]:
    """Yield a file in pieces; raise UsageError if it is not, or does not stay, what the manifest says."""
    try:
        with open(path, "rb", buffering=0) as file:
            for is_read in (False, True):
                status = os.fstat(file.fileno())
                if (status.st_size, status.st_mtime_ns) != (entry.size, entry.stamp):
                    raise UsageError(f"{path} was changed while it was staged", hint="stage what nobody writes")
                if not is_read:
                    yield from iter(partial(file.read, PIECE_BYTES), b"")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="stage what you can read") from None


def _block(header: tarfile.TarInfo) -> bytes:
    return header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)


# An environment that moves


def _may_name_prefix(path: str, entry: Entry) -> bool:
    folder, name = os.path.split(path)
    is_small = entry.size <= _LARGEST_REWRITTEN_BYTES
    return is_small and (os.path.basename(folder) == "bin" or name.endswith(_OF_PREFIX) or "__editable__" in name)


def moved(old: tuple[str, ...], new: str) -> Rewrite:
    """Return what rewrites the paths of an environment in its scripts, .pth files and finders of editable installs."""
    import re

    pattern = re.compile(b"(?:" + b"|".join(re.escape(os.fsencode(path)) for path in old) + rb")(?![\w.-])")

    def rewrite(content: bytes) -> bytes:
        if content.startswith(b"\x7fELF"):
            return content
        return pattern.sub(os.fsencode(new).replace(b"\\", rb"\\"), content)

    return rewrite
