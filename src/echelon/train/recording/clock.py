"""Measure the seconds of a script's steps, without the cost of recording them."""

import time
from contextlib import contextmanager
from typing import Iterator, List, Optional

from .. import device as devices


class Clock:
    """A clock that runs while the script does."""

    def __init__(self) -> None:
        self._began: Optional[float] = None
        self._passed = 0.0
        self.steps: List[float] = []
        """The seconds of each step so far."""

    def go(self) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def stop(self) -> None:
        """Stop the clock, after the device has finished its work for the script."""
        devices.synchronize_used()
        self._pause()

    def lap(self) -> None:
        """End a step."""
        self.stop()
        self.steps.append(round(self._passed, 6))
        self._passed = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the duration of a block out, without a wait for the device, which continues undisturbed."""
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
