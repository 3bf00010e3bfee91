"""Decide at which steps a training is saved, equally on all ranks.

An order by steps needs no decision. For one by time, and for the order to save and end, rank 0 decides: the ranks meet
at some steps, and at each of them rank 0 also says which step is the next to meet at. So a meeting costs nothing in
between, and there are only a few before a checkpoint.
"""

import os
import sys
import time
from typing import NamedTuple, NoReturn

from ...orders.checkpoint import CheckpointOrder
from ..wire import messages

ORDER_FILE = "ECHELON_ORDER_FILE"
"""The variable with the path of a file; when the file appears, the ranks are to save and end."""
HANDED_OVER = 85
"""The exit code of a rank that has saved and ended, as ordered."""
_MOST_SECONDS = 1.0
"""The longest time between two meetings, if steps last as long as before: so soon an order is noticed."""
_MOST_STEPS = 50
"""The most steps between two meetings: steps may become slower, and a meeting every 50 steps costs nothing."""


def leave_process(exit_code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


class Due(NamedTuple):
    saves: bool = False
    ends: bool = False
    """Whether the run ends after this checkpoint."""


class Schedule:
    """The steps at which the ranks save.

    >>> schedule = Schedule(CheckpointOrder("checkpoints", steps=5), 1, order_file="")
    >>> [step for step in range(1, 8) if schedule.due(step).saves]
    [5, 6, 7]
    >>> schedule.note_saved(7)
    >>> [step for step in range(7, 13) if schedule.due(step).saves]
    [10, 11, 12]
    """

    def __init__(self, order: CheckpointOrder, num_ranks: int, order_file: str) -> None:
        self._order = order
        self._num_ranks = num_ranks
        self._order_file = order_file
        self._saved_at = 0
        self._is_owed = False
        self._saved_when = time.monotonic()
        self._met_at = 0
        self._met_when = time.monotonic()
        self._next_meeting = 1
        self._interval = 1

    def due(self, step: int) -> Due:
        """Say what is due; all ranks call it after the same steps."""
        if step <= self._saved_at:
            return Due()
        every, ends = self._order.steps, False
        saves = self._is_owed or bool(every and step // every > self._saved_at // every)
        if (self._order.seconds or self._order_file) and step >= self._next_meeting:
            told = self._decide(step)
            if self._num_ranks > 1:
                told = messages.broadcast(told, 0)
            is_late, ends, self._next_meeting = told
            saves = saves or is_late or ends
        return Due(saves, ends)

    def note_saved(self, step: int, *, on_disk: bool = True) -> None:
        """Count from this step on; a state that was in memory alone is owed to the disk at the next step."""
        self._is_owed = not on_disk
        now = time.monotonic()
        self._saved_at, self._saved_when = step, now
        self._met_at, self._met_when = step, now  # the steps before a resumed one took no time
        self._next_meeting = max(self._next_meeting, step + 1)

    def _decide(self, step: int) -> "tuple[bool, bool, int]":
        now = time.monotonic()
        left = self._order.seconds - (now - self._saved_when) if self._order.seconds else _MOST_SECONDS * 2
        seconds_per_step = max((now - self._met_when) / max(step - self._met_at, 1), 1e-6)
        self._met_at, self._met_when = step, now
        num_steps = int(min(max(left, 0.0) / 2, _MOST_SECONDS) / seconds_per_step)
        # the first steps, and the time of the first, tell little: the interval grows slowly
        self._interval = min(max(num_steps, 1), 2 * self._interval, _MOST_STEPS)
        ends = bool(self._order_file) and os.path.exists(self._order_file)
        return left <= 0, ends, step + self._interval
