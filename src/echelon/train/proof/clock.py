"""How long a script takes for its steps, without what recording them costs."""

import statistics
import time
from contextlib import contextmanager
from typing import Iterator, List, Optional

from .. import device as devices

FEWEST_STEPS = 3  # after the first, which imports and compiles
SHORTEST_SECONDS = 1e-3  # below it a step is the interpreter's, and chance


class Clock:
    """Runs while the script does."""

    def __init__(self) -> None:
        self._began: Optional[float] = None
        self._passed = 0.0
        self.steps: List[float] = []
        """Seconds of each step so far."""

    def go(self) -> None:
        """Let the script's time run."""
        self._began = time.perf_counter()

    def stop(self) -> None:
        """Stop it, once the device has done what the script asked for."""
        devices.synchronize_used()
        self._pause()

    def lap(self) -> None:
        """End a step."""
        self.stop()
        self.steps.append(round(self._passed, 6))
        self._passed = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out what is done meanwhile; nothing is waited for, so that the device goes on as it would."""
        was_running = self._began is not None
        self._pause()
        try:
            yield
        finally:
            if was_running:
                self.go()

    def _pause(self) -> None:
        if self._began is not None:
            self._passed += time.perf_counter() - self._began
        self._began = None


def usual(of_ranks: List[List[float]]) -> Optional[float]:
    """Return the seconds of a usual step of a run; None where there are too few, or too short ones.

    Ranks wait for each other in a step. Who came to it last, having recorded most, has waited least: the shortest time
    is that of the step.
    """
    steps = [min(seconds) for seconds in zip(*of_ranks)][1:]  # noqa: B905
    if len(steps) < FEWEST_STEPS:
        return None
    middle = statistics.median(steps)
    return middle if middle >= SHORTEST_SECONDS else None
