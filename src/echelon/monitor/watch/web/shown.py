"""What a server shows of a run: looked at no more often than once a second, however many ask."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable

from echelon.errors import EchelonError
from echelon.monitor.watch.data import as_data
from echelon.monitor.watch.state import RunState
from echelon.monitor.watch.web import metrics

LEAST_SECONDS = 1.0
_LEVEL = 1  # a third of the time of the usual level, and a tenth more bytes


class RunGone(EchelonError):
    """The run directory can no longer be read."""


class Shown:
    """The newest state, as bytes."""

    def __init__(self, present: Callable[[], RunState], clock: Callable[[], float] = time.monotonic) -> None:
        """Look for the first time; `present` returns the state now, and raises OSError if the run is gone."""
        self._present = present
        self._clock = clock
        self._lock = threading.Lock()
        self._state = present()
        self._looked = clock()
        self._made: dict[str, bytes] = {}

    def json(self) -> bytes:
        """Return the state as JSON, and raise RunGone if it cannot be read."""
        with self._lock:
            return self._json()

    def zipped_json(self) -> bytes:
        """Return the same through gzip."""
        with self._lock:
            return self._kept("gzip", lambda: gzip.compress(self._json(), _LEVEL, mtime=0))

    def metrics(self) -> bytes:
        """Return the state as Prometheus text; raise RunGone like `json`."""
        with self._lock:
            return self._kept("metrics", lambda: metrics.text(self._state).encode("utf-8", "replace"))

    def _json(self) -> bytes:
        return self._kept("json", lambda: json.dumps(as_data(self._state), separators=(",", ":")).encode())

    def _kept(self, name: str, make: Callable[[], bytes]) -> bytes:
        if self._clock() - self._looked >= LEAST_SECONDS:
            try:
                self._state = self._present()
            except OSError as error:
                raise RunGone(f"the run directory cannot be read: {error.strerror}") from None
            self._looked = self._clock()
            self._made.clear()
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]
