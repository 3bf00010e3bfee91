"""The time of parts of a step: on the clock of a rank's device if it uses one, else on that of the processor.

A device computes later than Python asks it to. So a moment is an event in the device's queue of work: a wait for data
that the device spends with computing takes no time, and a collective takes the time that computing waits for it. A
collective in another queue than the training's, as fully_shard issues, takes none: only the wait for its result does.
"""

import time
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from typing import Any

from ...pytorch import internals
from ..wire import device as devices

MOST_PENDING = 256
"""Spans whose end the device has not reached; of more, the oldest are given up."""


Moment = tuple[float, object]
"""The seconds of the processor's clock, and an event in the device's queue, None without a device."""


def on_processor() -> Moment:
    """Return this moment, in a process that uses no device."""
    return time.perf_counter(), None


def on_device() -> Moment:
    """Return this moment, in a process that uses a device."""
    return time.perf_counter(), devices.event()


class Spans:
    """Spans of the training, each added to the sum of its name; the time of an inner one is not the outer one's.

    The training is the main thread, and the thread in which PyTorch goes backward for it: a device has one of its own.
    """

    def __init__(self, add: Callable[[str, float], None]) -> None:
        self._add = add
        self._thread = get_ident()
        self._now = on_processor
        self._queue: object = None
        self._open: list[tuple[str, Moment]] = []
        self._pending: deque[tuple[str, str, Any, Any]] = deque(maxlen=MOST_PENDING)

    @property
    def depth(self) -> int:
        return len(self._open)

    def may_measure(self) -> bool:
        """Say whether this thread trains, as a thread beside it lets nobody wait, and captures no graph."""
        is_training = get_ident() == self._thread or (bool(self._open) and internals.is_going_backward())
        return is_training and not (self._now is on_device and devices.is_capturing())

    def is_beside(self) -> bool:
        """Say whether the device's work goes to another queue now than to that in which the training computes."""
        return self._now is on_device and devices.current_queue() != self._queue

    def begin(self, name: str) -> None:
        """Begin a span inside of those that are open."""
        self._open.append((name, self._now()))

    def become(self, name: str) -> None:
        """End the innermost span, and begin another one at the same moment; do nothing outside of all spans."""
        if self._open:
            moment = self._now()
            self._close(moment)
            self._open.append((name, moment))

    def end(self, depth: int) -> None:
        """End the spans inside of the outermost `depth` ones."""
        moment = self._now()
        while len(self._open) > depth:
            self._close(moment)

    def _close(self, ended: Moment) -> None:
        name, began = self._open.pop()
        outer = self._open[-1][0] if self._open else ""
        if began[1] is None or ended[1] is None:
            self._count(name, outer, ended[0] - began[0])
        else:
            self._pending.append((name, outer, began[1], ended[1]))

    def _count(self, name: str, outer: str, seconds: float) -> None:
        self._add(name, seconds)
        if outer:
            self._add(outer, -seconds)

    def collect_finished(self) -> None:
        """Add the spans whose end the device has reached, and never wait for it; note whether a device is used now."""
        self._now = on_device if devices.is_used() else on_processor
        self._queue = devices.current_queue()
        while self._pending and self._pending[0][3].query():
            name, outer, began, ended = self._pending.popleft()
            try:
                seconds = began.elapsed_time(ended) / 1e3
            except RuntimeError:
                continue  # the script has changed its device between the two
            self._count(name, outer, seconds)
