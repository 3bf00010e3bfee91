"""Decide whether another attempt follows a failed one, and when."""

from __future__ import annotations

import re
from collections.abc import Callable

from echelon.launch import failure
from echelon.launch.failure import Failure

MAX_PORT_CLASHES = 3
FIRST_WAIT_SECONDS = 1.0  # before the second restart without progress; the first one follows at once
MAX_WAIT_SECONDS = 60.0
LONG_ATTEMPT_SECONDS = 600.0  # an attempt that fails after this time is no quick series of failures
UNKNOWN_STEP = -1
_FINAL = (failure.INTERRUPTED, failure.TIME_LIMIT, failure.MISPLACED, failure.REFUSED, failure.UNKNOWN_PYTORCH)
# the same traceback of these causes, twice, comes a third time; other causes are about what surrounds the script
_LASTING = (
    failure.USER_ERROR, failure.OWN_MISTAKE, failure.IMPORT_FAILURE, failure.OUT_OF_MEMORY, failure.OF_RANK_0
)  # fmt: skip
_CHANGES = re.compile(r"0x[0-9a-f]+|^.*\bechelon: .*$", re.MULTILINE)  # addresses, and our own lines with their times
_PLACE = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+)')


class Restarts:
    """Count the failures without progress, and the attempts that only lost a race for a port.

    `newest_step` returns the step of the newest published checkpoint, or UNKNOWN_STEP.
    """

    def __init__(self, max_restarts: int, newest_step: Callable[[], int] = lambda: UNKNOWN_STEP) -> None:
        self.count = 0
        """The restarted attempts."""
        self.wait_seconds = 0.0
        """How long to wait before the next attempt."""
        self.why_not = ""
        """Why a restart that --max-restarts allows would be in vain."""
        self._max_restarts = max_restarts
        self._newest_step = newest_step
        self._step_at_start = UNKNOWN_STEP
        self._num_in_vain = 0
        self._num_quick = 0
        self._num_port_clashes = 0
        self._last: Failure | None = None

    def note_start(self) -> None:
        """Note the newest checkpoint when an attempt begins."""
        self._step_at_start = self._newest_step()

    @property
    def counts(self) -> tuple[int, int, int]:
        """What the limit needs to know of the past: the restarts, those in vain, and those in quick succession."""
        return self.count, self._num_in_vain, self._num_quick

    def adopt(self, text: str) -> None:
        """Go on from the `counts` of another process, written with commas."""
        self.count, self._num_in_vain, self._num_quick = map(int, text.split(","))

    @property
    def has_left(self) -> bool:
        """Say whether the limit allows one more restart."""
        return self._max_restarts > 0 and (
            self._num_in_vain < self._max_restarts or self._newest_step() > self._step_at_start
        )

    def take(self, reason: Failure, *, has_lost_nodes: bool = False, lasted_seconds: float = 0.0) -> bool:
        """Say whether all ranks should be started again after this failure, and count the restart.

        A restart on fewer nodes, if allowed, is not counted, as with torchrun's --nnodes MIN:MAX.
        """
        self.wait_seconds = 0.0
        if reason.cause in _FINAL:
            return False
        if has_lost_nodes:
            return True
        if reason.cause == failure.PORT_CLASH and self._num_port_clashes < MAX_PORT_CLASHES:
            self._num_port_clashes += 1
            return True
        step, last = self._newest_step(), self._last
        self._last = reason
        if step > self._step_at_start:
            self._num_in_vain = self._num_quick = 0
        elif lasted_seconds >= LONG_ATTEMPT_SECONDS:
            self._num_quick = 0
        if self._num_in_vain >= self._max_restarts:
            return False
        if self._num_in_vain and last is not None and _is_same(last, reason, is_step_known=step != UNKNOWN_STEP):
            self.why_not = _same_twice(reason)
            return False
        if self._num_quick:
            self.wait_seconds = min(MAX_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2.0 ** (self._num_quick - 1))
        self._num_in_vain += 1
        self._num_quick += 1
        self.count += 1
        return True


def _is_same(one: Failure, other: Failure, *, is_step_known: bool) -> bool:
    """Say whether two attempts without progress ended with the same traceback.

    Where no checkpoint tells how far they came, the last lines that the rank wrote must be the same too.
    """
    if one.cause != other.cause or one.cause not in _LASTING or not failure.has_traceback(other):
        return False
    texts = [_CHANGES.sub("", "\n".join(failure.last_words(each.tail))) for each in (one, other)]
    tails = [_CHANGES.sub("", each.tail) for each in (one, other)]
    return texts[0] == texts[1] and (is_step_known or tails[0] == tails[1])


def _same_twice(reason: Failure) -> str:
    """Return a line with the exception and its place."""
    words = failure.last_words(reason.tail)
    error = failure.error_line(reason) or reason.cause
    places = [match for match in map(_PLACE.match, words) if match]
    place = f" ({places[-1]['file'].rpartition('/')[2]}:{places[-1]['line']})" if places else ""
    return f"the same error twice: {error}{place}; echelon starts no further attempt, because none made progress"
