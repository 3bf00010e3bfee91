"""The lookout: a child of the agent that surveys the node beside the ranks; a hanging driver blocks only this child."""

import json
import os
import selectors
import signal
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from .agent_spec import AgentSpec, Placement
from .warm_process import CannotStart, spawn

PATIENCE_SECONDS = 2.0  # leave the cores to the start; a run that ends earlier needs no survey
_CHUNK = 1 << 16


class _Program(NamedTuple):
    argv: List[str]
    environ: Dict[str, str]
    due: float


class Lookout:
    """Start the child and forward its messages; without a request, or if it cannot start, send nothing."""

    def __init__(self, selector: selectors.BaseSelector, tell: Callable[..., None]) -> None:
        self._selector = selector
        self._tell = tell
        self._waiting: Optional[_Program] = None
        self._pipe = -1
        self._unread = b""
        self.pids: Tuple[int, ...] = ()  # the child's process id, which is also its session's

    def prepare(
        self, spec: AgentSpec, placement: Placement, environ: Dict[str, str], archive: str, run_directory: str
    ) -> None:
        """Schedule the start, with the environment that the ranks will have."""
        if spec.looks is not None and not placement.first_local_rank:
            argv = [sys.executable, "-I", "-S", archive, "lookout", run_directory, placement.node]
            self._waiting = _Program(argv, environ, time.monotonic() + PATIENCE_SECONDS)

    def advance(self) -> Optional[float]:
        """Start the child if it is time; return the seconds until then, None if nothing is scheduled."""
        if self._waiting is None:
            return None
        rest = self._waiting.due - time.monotonic()
        if rest > 0:
            return rest
        program, self._waiting = self._waiting, None
        self._start(program)
        return None

    def _start(self, program: _Program) -> None:
        self._pipe, writing = os.pipe()
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            self.pids = (spawn(program.argv, program.environ, nothing, writing, nothing),)
        except CannotStart:
            pass  # then the ranks cannot start either, and that is reported
        finally:
            os.close(writing)
            os.close(nothing)
        os.set_blocking(self._pipe, False)
        self._selector.register(self._pipe, selectors.EVENT_READ, self._hear)

    def _hear(self) -> None:
        try:
            data = os.read(self._pipe, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._silence()
            self.pids = ()  # the child has ended; another process may get its number
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            message: Dict[str, Any] = json.loads(line)
            self._tell(message.pop("kind"), **message)

    def _silence(self) -> None:
        if self._pipe >= 0:
            self._selector.unregister(self._pipe)
            os.close(self._pipe)
            self._pipe = -1

    def close(self) -> None:
        """End the child and its own children: the session is its own."""
        self._waiting = None
        self._silence()
        for pid in self.pids:
            try:
                os.killpg(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass  # the child has just ended
