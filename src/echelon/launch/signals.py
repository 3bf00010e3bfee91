"""Turn signals into events of the supervisor's loop."""

from __future__ import annotations

import os
import select
import selectors
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """Catch signals while the supervisor's loop runs; restore the old handlers afterwards."""

    def __init__(self, selector: selectors.BaseSelector, on_signal: Callable[[int], None]) -> None:
        self._on_signal = on_signal
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        self._old_wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._old: dict[int, Any] = {}
        for number in CAUGHT:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup had set this handler
            self._old[number] = signal.signal(number, _do_nothing)
        selector.register(self._pipe[0], selectors.EVENT_READ, self._hear)

    def _hear(self) -> None:
        for number in os.read(self._pipe[0], 4096):
            if number in self._old:
                self._on_signal(number)

    def is_waiting(self) -> bool:
        """Say whether a signal has arrived that the loop has not read yet."""
        return bool(select.select([self._pipe[0]], [], [], 0)[0])

    def close(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        for end in self._pipe:
            os.close(end)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the wake-up pipe already holds the signal's number."""
