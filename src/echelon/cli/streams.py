"""The standard streams of a command, and errors of Python and the system as a person reads them."""

from __future__ import annotations

import codecs
import errno
import io
import os
import select
import sys
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from echelon.environment.errors import WrongEnvironmentError
from echelon.errors import EchelonError, UsageError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputLost(OSError):
    """Standard output cannot be written: it is closed or full, or its reader has ended."""


class _Data(io.FileIO):
    """Standard output: a failed write raises OutputLost once; later writes are dropped."""

    is_lost = False

    def write(self, data: ReadableBuffer, /) -> int:
        if self.is_lost:
            return memoryview(data).nbytes
        try:
            return _write(super().write, self.fileno(), data)
        except OSError as error:
            self.is_lost = True
            raise OutputLost(error.errno, error.strerror) from None


class _Talk(io.FileIO):
    """Standard error: bytes that cannot be written are dropped, and the command continues."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return _write(super().write, self.fileno(), data)
        except OSError:
            return memoryview(data).nbytes


def _write(write: object, descriptor: int, data: ReadableBuffer) -> int:
    """Write part of the data; wait if a non-blocking stream has a slow reader."""
    while (written := write(data)) is None:  # type: ignore[operator]
        select.select([], [descriptor], [])
    return int(written)


def replace() -> None:
    """Replace Python's standard streams by ones that behave alike everywhere; call it once, before opening any file."""
    closed = _fill_standard_descriptors()
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    codecs.register_error("echelon", _as_bytes_or_question_mark)
    # A closed standard output answers each write with EBADF; the ranks' own output goes to /dev/null.
    out = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) if 1 in closed else 1
    sys.stdout = _text(_Data(out, "w", closefd=False), sys.stdout, "echelon")
    sys.stderr = _text(_Talk(2, "w", closefd=False), sys.stderr, "backslashreplace")


def _text(raw: io.FileIO, before: TextIO | None, errors: str) -> io.TextIOWrapper:
    encoding = before.encoding if before is not None and before.encoding else "utf-8"
    is_live = raw.fileno() == 2 or raw.isatty()
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=is_live)


def _fill_standard_descriptors() -> set[int]:
    """Open descriptors that the shell closed (2>&-): else the next file would get the number, and our messages."""
    closed = set()
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            closed.add(descriptor)
            os.open(os.devnull, os.O_RDWR)  # open() takes the lowest free number
    return closed


def _as_bytes_or_question_mark(error: UnicodeError) -> tuple[str | bytes, int]:
    """Encode surrogate escapes as their bytes, and any other character that the encoding lacks as `?`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    signs = error.object[error.start : error.end]
    return b"".join(bytes([ord(sign) - 0xDC00]) if "\udc80" <= sign <= "\udcff" else b"?" for sign in signs), error.end


FOREIGN = (WrongEnvironmentError, OSError, UnicodeError, RecursionError, MemoryError)
"""Errors that an input or a machine can cause anywhere; any other exception is a mistake of echelon."""
TRACEBACK = "ECHELON_TRACEBACK"

_OF_A_PATH = {
    errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EROFS,
    errno.EEXIST, errno.ENXIO, errno.EINVAL,
}  # fmt: skip
"""These errors mean that a given path is wrong; other numbers concern the machine."""
_REPAIRS = {
    errno.ENOSPC: "df -h . ; df -i .   show which disk or which count of files is full",
    errno.EDQUOT: "quota -s   or your site's command for quotas",
    errno.EMFILE: "ulimit -n 4096",
    errno.ENFILE: "another node: this one has too many open files",
    errno.ENOMEM: "ulimit -v unlimited",
    errno.EAGAIN: "ulimit -u   shows how many processes you may have",
    errno.ESTALE: "cd .   or another node: the file server has forgotten this folder",
}


def translated(error: BaseException) -> EchelonError:
    if isinstance(error, WrongEnvironmentError):
        return UsageError(error.message, hint=error.hint)
    if isinstance(error, OutputLost):
        return EchelonError(
            f"standard output cannot be written: {error.strerror}", hint=_REPAIRS.get(error.errno or 0, "")
        )
    if isinstance(error, MemoryError):
        return EchelonError("there is not enough memory for echelon itself", hint=_REPAIRS[errno.ENOMEM])
    if isinstance(error, RecursionError):
        return UsageError("the input is nested too deeply to be read", hint="use fewer nested brackets")
    if isinstance(error, UnicodeError):
        return UsageError(f"a text is not UTF-8: {error}", hint="iconv -t UTF-8 FILE   writes it anew")
    return _of_system(error) if isinstance(error, OSError) else EchelonError(str(error))


def is_unread(error: BaseException) -> bool:
    """Say whether the reader of a pipe has ended, as after `… | head`."""
    return isinstance(error, OutputLost) and error.errno == errno.EPIPE


def _of_system(error: OSError) -> EchelonError:
    try:
        os.getcwd()
    except OSError as lost:
        return UsageError(
            f"the working directory cannot be used: {lost.strerror}", hint="cd ~   or another directory that exists"
        )
    name = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, (str, bytes)) else ""  # or a descriptor
    kind = UsageError if name and error.errno in _OF_A_PATH else EchelonError
    return kind(f"{name}{error.strerror or error}", hint=_REPAIRS.get(error.errno or 0, ""))


def tell_mistake(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Say in two lines that echelon itself has a mistake; this is the sys.excepthook."""
    import traceback

    if os.environ.get(TRACEBACK):
        traceback.print_exception(kind, error, trace)
        return
    from echelon.cli.talk import say_error

    rows = traceback.extract_tb(trace)
    where = f" in {os.path.basename(rows[-1].filename)}, line {rows[-1].lineno}" if rows else ""
    say_error(
        EchelonError(
            f"a mistake in echelon{where}: {kind.__name__}: {error}",
            hint=f"{TRACEBACK}=1 before the same command shows more; please report it",
        )
    )
