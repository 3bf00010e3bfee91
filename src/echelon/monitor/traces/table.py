"""The events of a trace as columns of numbers: some thirty bytes an event, so that a large trace fits in memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from echelon.monitor.traces import kinds

NO_LINK = -1
MOST_KNOWN = 100_000
"""The most names whose kind is kept: each step, or each request, may have a name of its own."""


class Host:
    """What threads of the CPU did."""

    def __init__(self) -> None:
        self.begins, self.ends = array("d"), array("d")
        self.threads = array("L")
        self.kinds = array("b")
        """From `kinds`: first what each event is alone, see `threads.Doings` for what it is inside of others."""
        self.links = array("q")
        """The External id of an operation, the correlation of a call; NO_LINK for neither."""

    def __len__(self) -> int:
        return len(self.begins)


class Device:
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
        self.host, self.device = Host(), Device()
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
