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
from array import array
from collections.abc import Iterable, Iterator
from typing import IO, Any

from echelon.environment import regular_files
from echelon.errors import UsageError
from echelon.monitor.traces import kinds
from echelon.units import counted

CHUNK_BYTES = 1 << 20
GZ = b"\x1f\x8b"
PACKED_BYTES = 1 << 12  # where packed data is damaged, what this many bytes would have given is lost
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


class TraceFile:
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
                self.damage = f"has {counted(num_left_out, 'unreadable event')}"
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


NO_LINK = -1
MOST_KNOWN = 100_000
"""The most names whose kind is kept: each step, or each request, may have a name of its own."""


class HostTimeline:
    """What threads of the CPU did."""

    def __init__(self) -> None:
        self.begins, self.ends = array("d"), array("d")
        self.threads = array("L")
        self.kinds = array("b")
        """A constant of `kinds` for each event, by its own name; `doings.Doings` finds the events around it."""
        self.links = array("q")
        """The External id of an operation, the correlation of a call; NO_LINK for neither."""

    def __len__(self) -> int:
        return len(self.begins)


class DeviceTimeline:
    """What devices did."""

    def __init__(self) -> None:
        self.begins, self.ends = array("d"), array("d")
        self.correlations, self.external_ids = array("q"), array("q")
        self.names = array("L")
        self.is_copy = bytearray()
        self.says_collective = bytearray()
        """Whether the event has the fields that Kineto copies from the collective that launched it."""

    def __len__(self) -> int:
        return len(self.begins)


class Table:
    """The events of one trace."""

    def __init__(self) -> None:
        self.host, self.device = HostTimeline(), DeviceTimeline()
        self.steps: list[tuple[int, float, float]] = []
        """The number, begin and end of each `ProfilerStep#N`."""
        self.optimizer_ends: list[float] = []
        self.threads: dict[tuple[Any, Any], int] = {}
        self.names: dict[str, int] = {}
        """The names of what devices did, with their numbers."""
        self.devices: set[int] = set()
        self.is_hip = False
        self._kinds: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self.host) + len(self.device)

    def fill(self, events: Iterable[Any]) -> None:
        """Take the events that count; leave out all others, also such without a time."""
        known = self._kinds
        for event in events:
            if not isinstance(event, dict) or event.get("ph") != "X":
                continue
            category, name, fields = event.get("cat"), event.get("name"), event.get("args")
            begin, length = _time(event.get("ts")), _time(event.get("dur"))
            if begin < 0 or length < 0 or not (isinstance(category, str) and isinstance(name, str)):
                continue
            fields = fields if isinstance(fields, dict) else {}
            if kinds.is_of_device(category):
                self._add_device(category, name, begin, begin + length, fields)
                continue
            kind = known.get((category, name))
            if kind is None:
                kind = kinds.of_host(category, name)
                if len(known) < MOST_KNOWN:
                    known[category, name] = kind
            if kind >= 0:
                self._add_host(kind, name, begin, begin + length, (event.get("pid"), event.get("tid")), fields)

    def _add_host(
        self, kind: int, name: str, begin: float, end: float, thread: tuple[Any, Any], fields: dict[str, Any]
    ) -> None:
        host = self.host
        if kind == kinds.STEP:
            match = kinds.STEP_NAME.fullmatch(name)
            if fields.get("finished") is not False:  # else the profiler was stopped within the step
                self.steps.append((int(match.group(1)) if match else 0, begin, end))
            return
        if kind == kinds.OPTIMIZER:
            self.optimizer_ends.append(end)
        is_call = kind == kinds.CALL
        self.is_hip = self.is_hip or (is_call and name.startswith("hip"))
        host.begins.append(begin)
        host.ends.append(end)
        host.threads.append(self.threads.setdefault((str(thread[0]), str(thread[1])), len(self.threads)))
        host.kinds.append(kind)
        host.links.append(_link(fields, "correlation") if is_call else _external_id(fields))

    def _add_device(self, category: str, name: str, begin: float, end: float, fields: dict[str, Any]) -> None:
        device = self.device
        device.begins.append(begin)
        device.ends.append(end)
        device.correlations.append(_link(fields, "correlation"))
        device.external_ids.append(_external_id(fields))
        device.names.append(self.names.setdefault(name, len(self.names)))
        device.is_copy.append(category in kinds.COPIES)
        device.says_collective.append("Collective name" in fields or category == kinds.COLLECTIVE_OF_DEVICE)
        number = fields.get("device")
        if isinstance(number, int):
            self.devices.add(number)


def _time(value: Any) -> float:
    """Return a time in microseconds; -1 for what is none, such as a text or NaN."""
    return value if isinstance(value, (int, float)) and 0 <= value < 1e18 else -1.0


def _link(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) and 0 < value < 1 << 62 else NO_LINK


def _external_id(fields: dict[str, Any]) -> int:
    return _link(fields, "External id") if "External id" in fields else _link(fields, "external id")
