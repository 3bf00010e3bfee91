"""The standard streams of a command: closed, full and unread streams, and encodings that lack our characters."""

from __future__ import annotations

import codecs
import io
import os
import select
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

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
