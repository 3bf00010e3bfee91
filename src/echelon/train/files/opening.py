"""Hook open(): rank 0 gets a file, and the other ranks get a sink that counts the written bytes."""

import builtins
import functools
import io
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from .. import patches
from ..function_types import Function
from ..patches import Hooks
from ..scaling_error import as_of_library
from . import whole
from .sharing import EACH, ONE, TOGETHER, Files, path_of

_WRITES = frozenset("wax+")
_open = builtins.open
_WHY = "A file that all ranks write is written by rank 0."


def install(files: Files, hooks: Hooks) -> None:
    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: Any = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if not isinstance(mode, str) or not _WRITES & set(mode):
            files.tell_of_later(path_of(file))
            return _open(files.seen(file), mode, buffering, encoding, errors, newline, closefd, opener)
        path = path_of(file)
        files.note_mode(path, mode)
        way = files.way(path)
        if path is None or way == EACH or (way == ONE and not files.is_closed):
            if path is not None and files.is_fetching and mode.strip("bt+") == "w" and opener is None:
                return with_text(appearing(path, mode), mode, buffering, encoding, errors, newline)
            if path is None or way == EACH:
                return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)
            made = whole.opened(_open, file, mode, buffering, encoding, errors, newline, closefd, opener)
            files.begin_writing(path, made)
            return made
        _open(os.devnull, mode.replace("x", "w"), buffering, encoding, errors, newline).close()  # are they valid?
        buffer = _buffer(files, file, mode, (buffering, closefd, opener))
        made = with_text(buffer, mode, buffering, encoding, errors, newline)
        files.begin_writing(path, made, is_hidden=way == TOGETHER and "w" in mode and "+" not in mode)
        made.on_close = lambda: files.end_writing(path)
        return made

    hooks.put(builtins, "open", _open, opened, why=_WHY)
    patches.replace(io, "open", opened, why=_WHY)  # pathlib uses it
    hooks.when_imported("numpy", _hook_numpy(opened), why=_WHY, attribute="savetxt")
    _hook_old_pathlib(opened)
    for name in ("fsync", "fdatasync"):
        hooks.replace("os", name, _keeping, why="What other ranks write to the null device is kept on no disk.")


def _keeping(original: Callable[[Any], None]) -> Callable[[Any], None]:
    def keep(fd: Any) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        if os.fstat(number).st_rdev != os.stat(os.devnull).st_rdev:
            original(fd)

    return keep


def _buffer(files: Files, file: object, mode: str, more: Any) -> Any:
    """Return a file on rank 0, and on other ranks a sink that begins at the file's position."""
    path = str(path_of(file))

    def begin() -> Any:
        return real(file, mode, *more)

    made = files.act("open for writing", file, begin, tells=lambda buffer: buffer.tell(), instead=0)
    is_copied = "+" in mode and not {"w", "x"} & set(mode)  # the file has content, which the script reads and changes
    if isinstance(made, int):
        made = Sink(file, files.theirs(path), mode, made)
        files.note_sink(made)
    if is_copied:
        _copy(files, made, path)
    elif "+" in mode:
        made.on_look = functools.partial(_copy, files, made, path)
    if "+" in mode:
        made.on_descriptor = functools.partial(files.note_mapped, path)
    return made


def _copy(files: Files, made: object, path: str) -> None:
    files.meet("read back", path)
    if isinstance(made, Sink):
        made.copy()
    files.meet("read back", path)


def _hook_numpy(opened: object) -> Function:
    """Return a hook for numpy.savetxt, which keeps io.open in a table."""

    def act(numpy: Any) -> None:
        openers = getattr(getattr(numpy.lib, "_datasource", None), "_file_openers", None)
        table = getattr(openers, "_file_openers", {})
        if None in table:
            patches.replace(table, None, opened, why=_WHY, name="numpy.lib._datasource._file_openers[None]")

    return act


def _hook_old_pathlib(opened: Any) -> None:
    """Hook the open() that pathlib copied into a class before Python 3.11."""
    import pathlib

    accessor = getattr(pathlib, "_NormalAccessor", None)
    if accessor is not None and hasattr(accessor, "open") and accessor.open is _open:
        patches.replace(accessor, "open", staticmethod(opened), why=_WHY)


Done = Callable[[], None]


class Announced:
    """A file that announces its close(), but not its finalization if nobody closed it."""

    on_close: Done | None = None
    on_descriptor: Done | None = None
    """Is called when the script asks for the descriptor: it may map the file, and write to it after close()."""

    def fileno(self) -> int:
        """Return the descriptor, and announce that the script has it."""
        if self.on_descriptor is not None and not self.closed:  # type: ignore[attr-defined]
            self.on_descriptor()
        return int(super().fileno())  # type: ignore[misc]

    def close(self) -> None:
        """Close the file, and announce it once."""
        was_open = not self.closed  # type: ignore[attr-defined]
        super().close()  # type: ignore[misc]
        if was_open and self.on_close is not None and not getattr(self, "_finalizing", False):
            self.on_close()


class Raw(Announced, io.FileIO):
    """An unbuffered binary file."""


class BufferedWriter(Announced, io.BufferedWriter):
    """A buffered binary file for writing."""


class WholeWriter(Announced, whole.Buffer):
    """A buffered binary file for writing that appears when it is whole."""


class Random(Announced, io.BufferedRandom):
    """A buffered binary file for reading and writing."""


class Text(Announced, io.TextIOWrapper):
    """A text file for writing."""


class Reread(Random):
    """A new binary file; before its first read, the other ranks copy its content."""

    on_look: Done | None = None

    def _look(self) -> None:
        self.flush()
        on_look, self.on_look = self.on_look, None
        if on_look is not None:
            on_look()

    def read(self, size: int | None = -1) -> bytes:
        self._look()
        return super().read(size)

    def read1(self, size: int = -1) -> bytes:
        self._look()
        return super().read1(size)

    def readinto(self, buffer: Any) -> int:
        self._look()
        return super().readinto(buffer)

    def readline(self, size: int | None = -1) -> bytes:
        self._look()
        return super().readline(size)

    def peek(self, size: int = 0) -> bytes:
        self._look()
        return super().peek(size)

    def fileno(self) -> int:
        if not self.closed:
            self._look()
        return super().fileno()


class Sink(Announced, io.BufferedIOBase):
    """Accepts the bytes that another rank writes, and keeps only their number.

    A script that reads the file, or needs the descriptor of a readable file, gets its own copy of the file on the disk.
    """

    on_look: Done | None = None

    def __init__(self, name: object, path: str, mode: str, position: int) -> None:
        self.name = name
        self.mode = mode
        self._path = path
        self._position = self._size = position
        self._copy: Any | None = None
        self._nothing: int | None = None

    def copy(self) -> None:
        """Copy the file on the disk, and read and write the copy from now on."""
        self._copy = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            with io.FileIO(self._path) as file:
                shutil.copyfileobj(file, self._copy)
        except FileNotFoundError:
            pass  # rank 0 has not made the file yet
        self._copy.seek(self._position)

    def become_real(self) -> None:
        """Write to the file itself from now on, behind what is in it; its lines until now are on the disk."""
        if self._copy is None:
            self._copy = io.FileIO(self._path, "r+" if os.path.exists(self._path) else "w+")
            self._copy.seek(0, os.SEEK_END)

    def _own(self) -> Any:
        """Return the copy, which is made at its first use."""
        if self._copy is None:
            on_look = self.on_look or self.copy
            on_look()
        return self._copy

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return "+" in self.mode

    def seekable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Count the bytes; write them to the copy, if there is one."""
        if self.closed:
            raise as_of_library(ValueError("write to closed file"))
        size = memoryview(data).nbytes
        if self._copy is not None:
            if "a" in self.mode:
                self._copy.seek(0, os.SEEK_END)
            self._copy.write(data)
        else:
            self._position = self._size if "a" in self.mode else self._position
            self._position += size
            self._size = max(self._size, self._position)
        return size

    def tell(self) -> int:
        return self._copy.tell() if self._copy is not None else self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if self._copy is not None:
            return int(self._copy.seek(offset, whence))
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise OSError(22, "Invalid argument")
        self._position = start + offset
        return self._position

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        if self._copy is not None:
            return int(self._copy.truncate(size))
        self._size = size
        return size

    def read(self, size: int | None = -1) -> bytes:
        self._must_be_readable()
        return bytes(self._own().read(size))

    def read1(self, size: int = -1) -> bytes:
        return self.read(size)

    def peek(self, size: int = 0) -> bytes:
        self._must_be_readable()
        return bytes(self._own().peek(size))

    def _must_be_readable(self) -> None:
        if not self.readable():
            raise io.UnsupportedOperation("read")

    def flush(self) -> None:
        if self.closed:
            raise as_of_library(ValueError("flush of closed file"))
        if self._copy is not None:
            self._copy.flush()

    def fileno(self) -> int:
        """Return a descriptor of the copy; of the null device if the file is not readable."""
        if self.closed:
            raise as_of_library(ValueError("I/O operation on closed file"))
        if self.readable():
            if self.on_descriptor is not None:
                self.on_descriptor()
            return int(self._own().fileno())
        if self._nothing is None:
            self._nothing = os.open(os.devnull, os.O_WRONLY)
        return self._nothing

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._copy is not None:
            self._copy.close()
        if self._nothing is not None:
            os.close(self._nothing)


def real(file: Any, mode: str, buffering: int, closefd: bool, opener: Any) -> Any:
    plain = mode.replace("b", "").replace("t", "")
    if buffering == 0:
        return Raw(file, plain, closefd, opener)
    raw: Any = whole.open_raw(file, mode, buffering, closefd, opener)
    if raw is not None:
        return WholeWriter(raw, buffering if buffering > 1 else raw._blksize)
    raw = io.FileIO(file, plain, closefd, opener)
    size = buffering if buffering > 1 else getattr(raw, "_blksize", io.DEFAULT_BUFFER_SIZE)
    if "+" not in mode:
        return BufferedWriter(raw, size)
    return Reread(raw, size) if "w" in mode or "x" in mode else Random(raw, size)


def with_text(buffer: Any, mode: str, buffering: int, encoding: str | None, errors: str | None, newline: Any) -> Any:
    """Return a binary file, or a text file on top of it if the mode asks for text, as open() does."""
    if "b" in mode:
        return buffer
    text: Any = Text(buffer, encoding, errors, newline, buffering == 1)
    text.mode = mode
    return text


class _Whole(io.FileIO):
    """A file under a temporary name that takes its own name when it is complete."""

    def __init__(self, path: str, mode: str) -> None:
        self._final = path
        self._temporary = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
        super().__init__(self._temporary, mode)

    def close(self) -> None:
        was_open = not self.closed
        super().close()
        if was_open:
            os.replace(self._temporary, self._final)


def appearing(path: str, mode: str) -> Any:
    """Open a binary file that appears when it is closed, so that processes that write the same file do not conflict."""
    raw = _Whole(path, "w+" if "+" in mode else "w")
    return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
