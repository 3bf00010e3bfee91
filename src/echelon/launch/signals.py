"""Turn signals into events of the supervisor's loop."""

from __future__ import annotations

import os
import select
import selectors
import signal
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from echelon.launch.kept import Kept

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Signals:
    """Catch signals while the supervisor's loop runs; restore the old handlers afterwards.

    The keeper passes its own signals on by a link. What is sent to a process group or to a job reaches both processes,
    and counts once. A keeper that was killed counts as SIGKILL: whoever killed it meant the run.
    """

    def __init__(self, selector: selectors.BaseSelector, on_signal: Callable[[int], None], kept: Kept) -> None:
        self._on_signal = on_signal
        self._selector = selector
        self._link = kept.link
        self._num_here: Counter[int] = Counter()
        self._num_passed_on: Counter[int] = Counter()
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
        selector.register(self._link, selectors.EVENT_READ, self._hear_keeper)
        signal.pthread_sigmask(signal.SIG_SETMASK, kept.mask)

    def _hear(self) -> None:
        self._count(os.read(self._pipe[0], 4096), self._num_here, self._num_passed_on)

    def _hear_keeper(self) -> None:
        try:
            numbers = self._link.recv(4096)
        except ConnectionResetError:  # it was killed with words of ours unread
            numbers = b""
        if numbers:
            self._count(numbers, self._num_passed_on, self._num_here)
        else:
            self._selector.unregister(self._link)
            self._on_signal(signal.SIGKILL)

    def _count(self, numbers: bytes, counts: Counter[int], others: Counter[int]) -> None:
        for number in numbers:
            if number in self._old:
                counts[number] += 1
                if counts[number] > others[number]:
                    self._on_signal(number)

    def is_waiting(self) -> bool:
        """Say whether a signal has arrived that the loop has not read yet."""
        return bool(select.select([self._pipe[0], self._link.fileno()], [], [], 0)[0])

    def close(self) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        for end in self._pipe:
            os.close(end)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the wake-up pipe already holds the signal's number."""
