"""Read the events of a Chrome trace, one after the other: plain or gz, whole or cut off, in little memory.

A trace is an object whose `traceEvents` are a list, as torch.profiler writes it, or this list alone:

{"schemaVersion": 1, "distributedInfo": {"rank": 0}, "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "ts": 12.034, "dur": 3.5, "args": {}},
  …
]}
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterator
from typing import IO, Any

from echelon.environment import regular_files
from echelon.errors import UsageError

CHUNK_BYTES = 1 << 20
GZ = b"\x1f\x8b"
PACKED_BYTES = 1 << 12
"""Where packed data is damaged, what this many bytes would have given is lost."""
LONGEST_EVENT = 64 * CHUNK_BYTES
"""A value that is longer is taken for damage; torch.profiler writes events of some hundred bytes."""
MAKE_ONE = (
    'torch.profiler\'s export_chrome_trace("trace.json") writes one; echelon profile --ranks 0 train.py makes one'
)
_SPACE = re.compile(r"[ \t\n\r]*")
_BETWEEN = re.compile(r"[ \t\n\r]*,[ \t\n\r]*(?=\{)")
_NEXT_EVENT = re.compile(r"\}\s*,\s*(?=\{\s*\"(?:ph|name|cat|pid|tid|ts)\")")
_decode = json.JSONDecoder().raw_decode


class NotWhole(Exception):
    """The text ends within a value."""


class Trace:
    """The events of one file; iterate over it once, and ask for the rest afterwards."""

    def __init__(self, path: str, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.path = path
        self._chunk_bytes = chunk_bytes
        self.fields: dict[str, Any] = {}
        """What the file says beside its events: `distributedInfo`, `deviceProperties` and others."""
        self.damage = ""
        """Why the file is not whole; empty where it is."""
        self.num_bytes = 0
        """The size of the text, unpacked."""
        self._buffer, self._position, self._is_end, self._has_begun = "", 0, False, False
        self._pieces = self._texts()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield each event; raise UsageError if the file is no trace."""
        try:
            first = self._sign()
            if first == "[":
                self._position += 1
                yield from self._events()
            elif first == "{":
                self._position += 1
                yield from self._object()
            else:
                raise self._no_trace("it does not begin as JSON" if first else "it is empty")
        except NotWhole:
            self.damage = self.damage or "is cut off"
        except ValueError:
            raise self._no_trace("a value of it is no JSON") from None

    def _object(self) -> Iterator[dict[str, Any]]:
        while self._sign() == '"':
            key = str(self._value())
            if self._sign() != ":":
                break
            self._position += 1
            if key == "traceEvents" and self._sign() == "[":
                self._position += 1
                yield from self._events()
            else:
                self._sign()
                self.fields[key] = self._value()
            if self._sign() != ",":
                break
            self._position += 1
        if self._sign() != "}":
            self.damage = self.damage or "is damaged behind its events"

    def _events(self) -> Iterator[dict[str, Any]]:
        """Yield the objects of a list up to its end; the `]` of a list alone may be missing."""
        num_left_out = 0
        while (sign := self._sign()) == "{":
            try:
                event = self._value()
            except ValueError:
                num_left_out += 1
                self.damage = f"has {num_left_out} unreadable event{'s' if num_left_out > 1 else ''}"
                self._skip()
                continue
            yield event
            between = _BETWEEN.match(self._buffer, self._position)
            if between is not None:
                self._position = between.end()
            elif self._sign() == ",":
                self._position += 1
        if sign != "]":
            self.damage = f"is damaged at {sign!r}"
            raise NotWhole
        self._position += 1

    def _sign(self) -> str:
        """Return the next sign that is no space, without taking it."""
        while True:
            self._position = _SPACE.match(self._buffer, self._position).end()  # type: ignore[union-attr]
            if self._position < len(self._buffer):
                self._has_begun = True
                return self._buffer[self._position]
            if not self._more():
                if not self._has_begun:
                    return ""
                raise NotWhole

    def _value(self) -> Any:
        """Take the next value; raise ValueError if it is damaged, NotWhole if the text ends within it."""
        while True:
            try:
                value, end = _decode(self._buffer, self._position)
            except ValueError:
                if not self._is_damaged() and self._more():
                    continue
                if _NEXT_EVENT.search(self._buffer, self._position) is None:
                    raise NotWhole from None
                raise
            except RecursionError:
                raise ValueError("nested too deeply") from None
            else:
                self._position = end
                return value

    def _is_damaged(self) -> bool:
        """Say whether more text cannot mend the next value: it is followed by events, or too long."""
        size = len(self._buffer) - self._position
        is_followed = size > 2 * CHUNK_BYTES and _NEXT_EVENT.search(self._buffer, self._position) is not None
        return is_followed or size > LONGEST_EVENT

    def _skip(self) -> None:
        """Go to the event behind a damaged one."""
        match = _NEXT_EVENT.search(self._buffer, self._position)
        if match is None:
            raise NotWhole
        self._position = match.end()

    def _more(self) -> bool:
        """Read further; return whether there was more."""
        if self._is_end:
            return False
        text = next(self._pieces, "")
        self._is_end = not text
        self._buffer = self._buffer[self._position :] + text
        self._position = 0
        return bool(text)

    def _texts(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        for piece in self._unpacked():
            self.num_bytes += len(piece)
            text = decoder.decode(piece)
            if text:
                yield text

    def _unpacked(self) -> Iterator[bytes]:
        """Yield the bytes of the file, unpacked if they are gz."""
        try:
            with regular_files.opened(self.path) as file:
                first = file.read(PACKED_BYTES)
                if first.startswith(GZ):
                    yield from self._from_gz(first, file)
                    return
                yield first
                while piece := file.read(self._chunk_bytes):
                    yield piece
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror}", hint=MAKE_ONE) from None

    def _from_gz(self, packed: bytes, file: IO[bytes]) -> Iterator[bytes]:
        """Unpack piece by piece, also files of several members, and all that is there of a file that is cut off."""
        unpacking = zlib.decompressobj(wbits=31)
        while packed:
            while packed:
                try:
                    yield unpacking.decompress(packed, self._chunk_bytes)
                except zlib.error as error:
                    self.damage = f"is damaged: {error}"
                    return
                packed = unpacking.unconsumed_tail
                if unpacking.eof:
                    packed, unpacking = unpacking.unused_data, zlib.decompressobj(wbits=31)
            packed = file.read(PACKED_BYTES)
        if not unpacking.eof:
            yield unpacking.flush()

    def _no_trace(self, why: str) -> UsageError:
        return UsageError(f"{self.path} is no trace of a profiler: {why}", hint=MAKE_ONE)
