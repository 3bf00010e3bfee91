"""Notice a process that somebody has stopped by a signal: it lives, and does nothing."""

import time
from typing import Callable, Optional

from . import process_state

STOPPED_SECONDS = 5.0
PAUSE_SECONDS = 3.0  # between two looks: then this process was stopped too, as by `scontrol suspend`


class HaltWatch:
    """How long a process has been stopped."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: Optional[float] = None
        self._last = clock()

    def is_frozen(self, pid: int) -> bool:
        """Look at the process, at least once a second; say whether it has been stopped for too long."""
        now = self._clock()
        was_paused, self._last = now - self._last > PAUSE_SECONDS, now
        process = process_state.read(pid)
        if process is None or process.state != "T":
            self._since = None
        elif self._since is None or was_paused:
            self._since = now
        return self._since is not None and now - self._since >= STOPPED_SECONDS
