"""Write a run to its trackers while it goes on, or afterwards; what was written once is not written again."""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from echelon.environment import regular_files
from echelon.errors import UsageError
from echelon.monitor import recorded
from echelon.monitor.track import configuration
from echelon.monitor.track.points import CurvePoints
from echelon.monitor.track.writers import TrackedRun, writer
from echelon.node import private
from echelon.spec import Tracker

STATE, LOG = "track.json", "track.log"
_STAMP = re.compile(r"\d{8}-\d{6}-(?P<label>.+)-[0-9a-f]{4}(?:-\d+)?")


class Follower:
    """Writes to trackers what is new in the files of a run."""

    def __init__(self, path: str, trackers: Sequence[Tracker], say: Callable[[str], None]) -> None:
        self._path = os.path.abspath(path)
        self._say = say
        self._points = CurvePoints(self._path)
        state = regular_files.read_object(os.path.join(self._path, STATE))
        self._states: dict[str, dict[str, Any]] = dict(state.get("trackers", {}))
        for tracker in trackers:
            self._states.setdefault(tracker.word, {"id": "", "step": 0, "points": 0, "is_complete": False})
        self._writers = {tracker: writer(tracker, self._path) for tracker in trackers}
        self._open: set[Tracker] = set()
        self.num_failed = 0

    def import_libraries(self) -> None:
        """Import what writes, which takes seconds, before it is needed."""
        for tracker in list(self._writers):
            with self._kept_apart(tracker):
                import_module(tracker.name)

    def look(self) -> None:
        points = self._points.look()
        for tracker in list(self._writers) if points else ():
            with self._kept_apart(tracker):
                state = self._states[tracker.word]
                new = [point for point in points if point.step > state["step"]]
                if new:
                    self._begin(tracker)
                    self._writers[tracker].write(new)
                    state["step"], state["points"] = new[-1].step, state["points"] + len(new)
        if points:
            self._keep()

    def end(self, exit_code: int | None) -> None:
        """Write what is left; with the exit code of a run that is over, also what the run used."""
        self.look()
        for tracker in list(self._writers):
            state = self._states[tracker.word]
            with self._kept_apart(tracker):
                if tracker in self._open or not state["is_complete"]:
                    self._begin(tracker)
                    numbers = {} if exit_code is None else configuration.summary(recorded.read(self._path), os.environ)
                    self._writers[tracker].close(numbers, exit_code)
                    state["is_complete"] = exit_code is not None
                view = self._writers[tracker].view
                self._say(f"{tracker.name}: {state['points']} points up to step {state['step']} · {view}")
        self._keep()

    def _begin(self, tracker: Tracker) -> None:
        if tracker in self._open:
            return
        files, name = recorded.read(self._path), os.path.basename(self._path)
        num_ranks = [int(event.get("ranks", 0)) for event in files.events if event["event"] == "attempt"]
        stamped = _STAMP.fullmatch(name)
        run = TrackedRun(
            name=name,
            label=stamped["label"] if stamped else name,
            began=float(files.events[0]["time"]) if files.events else time.time(),
            configuration=configuration.of_run(files, num_ranks[-1] if num_ranks else 0, os.environ),
        )
        state = self._states[tracker.word]
        state["id"] = self._writers[tracker].open(run, state["id"])
        self._open.add(tracker)

    @contextmanager
    def _kept_apart(self, tracker: Tracker) -> Iterator[None]:
        """Give a tracker up that fails: the others go on, and so does the run."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  whatever a library raises, it must not end the others
            why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            repair = f"echelon report {os.path.relpath(self._path)} --track {tracker.word}"
            self._say(f"note: --track {tracker.word} has stopped: {why}; {repair} writes the rest")
            del self._writers[tracker]
            self.num_failed += 1

    def _keep(self) -> None:
        path = os.path.join(self._path, STATE)
        with _explained(path):
            private.write(f"{path}.new", json.dumps({"format": 1, "trackers": self._states}, indent=1).encode())
            os.replace(f"{path}.new", path)


@contextmanager
def alone(path: str) -> Iterator[Callable[[str], None]]:
    """Wait until no other process writes the trackers of a run, and return what prints: libraries write to a log."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    with _explained(os.path.join(path, LOG)):
        log = os.open(os.path.join(path, LOG), flags, 0o600)
    with suppress(OSError):  # a file system without locks
        fcntl.flock(log, fcntl.LOCK_EX)
    ours = [os.dup(number) for number in (1, 2)]
    for number in (1, 2):
        os.dup2(log, number)

    def say(line: str) -> None:
        with suppress(OSError):  # nobody reads it any more
            os.write(ours[0], f"{line}\n".encode("utf-8", "replace"))

    try:
        yield say
    finally:
        sys.stdout.flush()
        for number, old in zip((1, 2), ours, strict=True):
            os.dup2(old, number)
            os.close(old)
        os.close(log)


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = f"cp -r {os.path.dirname(path)} copy && echelon report copy --track …"
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint=hint) from None
