"""The process beside the supervisor that writes to trackers: neither a slow disk nor its crash touches the run."""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable

from echelon.errors import EchelonError
from echelon.host import Host, own_command
from echelon.launch import failure
from echelon.launch.agents import Agents
from echelon.launch.runs import short_name
from echelon.spec import Plan

END_SECONDS = 30.0  # after the run, for what is left, and for imports that a short run did not wait for


class TrackerProcess:
    """Writes while a run goes on, if it has trackers; what the process says is said."""

    def __init__(self, plan: Plan, host: Host, selector: selectors.BaseSelector, say: Callable[[str], None]) -> None:
        self._say = say
        self._num_said = 0
        self._process: Agents | None = None
        trackers = [tracker.word for tracker in plan.trackers]
        options = " ".join(f"--track {word}" for word in trackers)
        self._repair = f"echelon report {short_name(plan.run_directory)} {options} writes the rest"
        words = [*own_command.module("echelon.monitor.track"), plan.run_directory, *trackers]
        try:
            self._process = Agents(host.start(words, environ=host.environ), self._end, self._hear) if trackers else None
        except EchelonError as error:
            say(f"note: --track writes nothing: {error.message}")
        if self._process is not None:
            self._process.watch(selector)

    def _hear(self, said: str) -> None:
        lines = said.splitlines()
        for line in lines[self._num_said :]:
            self._say(line)
        self._num_said = len(lines)

    def _end(self, exit_code: int, said: str) -> None:
        self._process = None
        if exit_code:
            self._say(f"note: the process that writes to trackers {failure.how(exit_code)}; {self._repair}")
        else:
            self._hear(said)

    def close(self) -> None:
        """Wait until the process has written the end of the run; say so if that takes too long."""
        deadline = time.monotonic() + END_SECONDS
        while self._process is not None:
            if self._process.has_ended():
                self._end(self._process.exit_code, self._process.said)
            elif time.monotonic() > deadline:
                self._process.send(signal.SIGKILL)
                self._process = None
                self._say(f"note: --track needs more than {END_SECONDS:g} s after the run; {self._repair}")
            else:
                time.sleep(0.01)
