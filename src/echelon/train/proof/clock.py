"""How long a script takes for its steps, without what recording them costs."""

import time
from contextlib import contextmanager
from typing import Iterator, List, Optional

from .. import device as devices


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
