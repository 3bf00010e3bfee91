"""Find spikes in a stream of losses: values far outside of those before, after which the stream is as before.

A loss that rises and stays is none: a curriculum became harder, or the training diverges, which other facts tell.
"""

import statistics
from collections import deque
from typing import Generic, NamedTuple, TypeVar

About = TypeVar("About")
WINDOW = 128
"""The values that say what is usual."""
FIRST = 16
REFRESH = 16
FAR = 10.0
"""How many times farther from the median a spike is than any value of the window above it."""
LOST = 0.25
"""A spike loses so much of what the training has won since its first values, at least."""
AFTER = 8
"""The values behind a spike, of which half must be as before."""


class Spike(NamedTuple, Generic[About]):
    """One value far outside."""

    value: float
    usual: float
    """The median before."""
    about: About


class Spikes(Generic[About]):
    """Look at each value; it costs a comparison, and now and then a median."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=WINDOW)
        self._begin: float | None = None
        self._usual = 0.0
        self._limit = float("inf")
        self._num_fresh = 0
        self._candidate: Spike[About] | None = None
        self._after: list[float] = []

    def look(self, value: float, about: About) -> Spike[About] | None:
        """Take a value; return a spike some values ago, once the stream is as before."""
        spike = None
        if self._candidate is not None:
            self._after.append(value)
            if len(self._after) >= AFTER:
                spike, self._candidate = self._judged(self._candidate), None
        elif value > self._limit:
            self._candidate, self._after = Spike(value, self._usual, about), []
            return None
        self._window.append(value)
        self._num_fresh += 1
        if self._num_fresh >= REFRESH and self._candidate is None:
            self._refresh()
        return spike

    def _judged(self, spike: Spike[About]) -> Spike[About] | None:
        middle = (spike.usual + spike.value) / 2
        return spike if sum(value < middle for value in self._after) * 2 >= AFTER else None

    def _refresh(self) -> None:
        self._num_fresh = 0
        if self._begin is None:
            self._begin = statistics.median(list(self._window)[:FIRST])
        if len(self._window) < WINDOW:
            return
        self._usual, most = statistics.median(self._window), max(self._window)
        won = max(0.0, self._begin - self._usual)
        # equal values, such as the zeros of a hinge loss, do not say what is far
        is_known = most > self._usual
        self._limit = self._usual + max(FAR * (most - self._usual), LOST * won) if is_known else float("inf")
