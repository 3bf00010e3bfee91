"""The lookout: a child of the agent that looks at its node beside the ranks; a driver that hangs hangs that alone."""

import json
import os
import selectors
import signal
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from .order import Order
from .seat import Seat
from .spawn import CannotStart, spawn

PATIENCE_SECONDS = 2.0  # the start has the cores to itself, and a run that is over by then needs no look
_CHUNK = 1 << 16


class _Program(NamedTuple):
    argv: List[str]
    environ: Dict[str, str]
    due: float


class Lookout:
    """What the child says is passed on; where nothing is to be looked at, or it cannot start, it says nothing."""

    def __init__(self, selector: selectors.BaseSelector, tell: Callable[..., None]) -> None:
        self._selector = selector
        self._tell = tell
        self._waiting: Optional[_Program] = None
        self._pipe = -1
        self._unread = b""
        self.pids: Tuple[int, ...] = ()  # of the child, where there is one; its session has the same number

    def prepare(self, order: Order, seat: Seat, environ: Dict[str, str], archive: str, run_directory: str) -> None:
        """Begin in a while, with the environment that the ranks will have."""
        if order.looks is not None and not seat.first_local_rank:
            argv = [sys.executable, "-I", "-S", archive, "lookout", run_directory, seat.node]
            self._waiting = _Program(argv, environ, time.monotonic() + PATIENCE_SECONDS)

    def advance(self) -> Optional[float]:
        """Begin if it is time; return in how many seconds it will be, if ever."""
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
            pass  # then the ranks cannot start either, and that is said
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
            self.pids = ()  # it has seen enough; its number may be another's by and by
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
        """End the child and what it has started: the session is its own."""
        self._waiting = None
        self._silence()
        for pid in self.pids:
            try:
                os.killpg(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass  # it has ended this moment
