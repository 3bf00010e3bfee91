"""How often a state is kept in memory: so often that it takes a small share of the time."""

import time

SHARE = 0.02
"""The most that saves may take of the time of the training."""
SHARE_IN_WRITING = 0.2
"""The most of the time in which a save is written beside the training."""
_GROWTH = 4
MOST_STEPS = 1000
"""The most steps between two saves: steps may become slower."""


class Pace:
    """The steps between two saves, from what the save before took.

    >>> pace = Pace()
    >>> pace.begin(1)
    1
    """

    def __init__(self) -> None:
        self._step = 0
        self._ended = time.monotonic()
        self._num_steps = 1
        self._least_wait = float("inf")
        self._cost = 0.0

    def begin(self, step: int, written_seconds: float = 0.0) -> int:
        """Return how many steps after this one the next save is due; `written_seconds` is of the save before."""
        seconds_per_step = max((time.monotonic() - self._ended) / max(step - self._step, 1), 1e-6)
        wanted = max(self._cost / SHARE, written_seconds / SHARE_IN_WRITING) / seconds_per_step
        self._num_steps = int(min(max(1.0, wanted + 0.5), self._num_steps * _GROWTH, MOST_STEPS))
        return self._num_steps

    def end(self, step: int, stopped_seconds: float, waited_seconds: float) -> None:
        """Note what a save took; of `waited_seconds`, ranks have waited for slower ones, as they do without a save."""
        self._least_wait = min(self._least_wait, waited_seconds)
        self._cost = stopped_seconds - waited_seconds + self._least_wait
        self._step, self._ended = step, time.monotonic()
