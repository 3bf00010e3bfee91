"""The oracle: a fork of rank 0 that computes ahead as one device, writes no output, and reports to rank 0."""

import atexit
import io
import os
import random
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from .. import patches
from ..scaling_error import is_own_mistake
from . import device as devices

LEAST_PATIENCE_SECONDS = 60.0
PATIENCE = 10.0  # times the first step of this rank, which has only its part of the batch
TOO_LARGE = "a single device runs out of memory with the whole batch"
TOO_SLOW = "the process for one device did not reach the first step within %d s"
NO_STEP = "in the process for one device the script ended before the first step"
KILLED = "signal %d killed the process for one device"
_LENGTH = struct.Struct("<q")


class Oracle:
    """The oracle, seen from both sides; it sends messages to rank 0."""

    def __init__(self) -> None:
        self._pid = 0
        self._pipe = -1
        self._began = 0.0
        self._hearing = threading.Lock()
        self._before_it_ends: Callable[[], None] = lambda: None
        self.is_here = False
        """Whether this process is the oracle."""
        self.why_not = ""
        """The reason why the oracle sends no more reports."""
        self.seconds = 0.0
        """The seconds from the fork to the last message."""

    @property
    def is_out(self) -> bool:
        """Whether the oracle still runs beside this process."""
        return self._pid != 0

    def fork(self) -> bool:
        """Fork the oracle; return True in it."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._began = time.monotonic()
        self._pipe, writing = os.pipe()
        state = random.getstate()
        self._pid = os.fork()
        if self._pid:
            os.close(writing)
            return False
        os.close(self._pipe)
        self._pid, self._pipe = 0, writing
        self.is_here = True
        random.setstate(state)  # Python reseeds it in a child
        torch.set_num_threads(1)  # the threads of the parent's pool are not here
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        why = "The process that computes the first step as one device reports its error."
        patches.replace(sys, "excepthook", lambda _kind, error, _trace: self.end(_told(error)), why=why)
        atexit.register(self.end, NO_STEP)  # before all others, which would write and speak
        return True

    def on_end(self, act: Callable[[], None]) -> None:
        """Let the oracle clean up before it ends."""
        self._before_it_ends = act

    def report(self, message: dict[str, object]) -> None:
        content = io.BytesIO()
        torch.save(message, content)
        data = memoryview(_LENGTH.pack(content.tell()) + content.getvalue())
        while data:
            data = data[os.write(self._pipe, data) :]

    def end(self, why_not: str = "") -> None:
        """End the oracle and all its resources; give the reason if it has not reported everything."""
        self._before_it_ends()
        self.report({"end": why_not})
        os._exit(0)

    def hear(self, *, patience_seconds: float) -> dict[str, object] | None:
        """Return the oracle's next message; None if it has ended, or sent nothing within that time."""
        with self._hearing:
            if not self._pid:
                return None
            content = self._read(time.monotonic() + patience_seconds)
            self.seconds = time.monotonic() - self._began
            message: dict[str, Any] = {"end": ""}
            if content is None:
                self.why_not = TOO_SLOW % round(self.seconds)
            elif not content:
                self.why_not = self._way_it_ended()
            else:
                message = torch.load(io.BytesIO(content), weights_only=True)
                self.why_not = message.get("end", "")
            if "end" in message:
                self._stop()
                return None
            return message

    def rest(self) -> float:
        """Return how long to wait for a message when this rank has continued meanwhile."""
        return max(LEAST_PATIENCE_SECONDS, PATIENCE * (time.monotonic() - self._began))

    def left_of_a_minute(self) -> float:
        """Return how long to wait when this rank waits for the end of the oracle."""
        return max(0.0, self._began + LEAST_PATIENCE_SECONDS - time.monotonic())

    def dismiss(self) -> None:
        """End the oracle; return when its process has released its devices."""
        with self._hearing:
            self._stop()

    def _stop(self) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._pipe)
            self._pid, self._pipe = 0, -1

    def _way_it_ended(self) -> str:
        """Return why the pipe was closed without a message; the kernel may have killed the oracle to free memory."""
        status = os.waitpid(self._pid, 0)[1]
        self._pid = 0
        os.close(self._pipe)
        return KILLED % os.WTERMSIG(status) if os.WIFSIGNALED(status) else NO_STEP

    def _read(self, deadline: float) -> bytes | None:
        """Return one message; None if the time is over, empty bytes if the pipe was closed."""
        head = self._read_bytes(_LENGTH.size, deadline)
        return self._read_bytes(_LENGTH.unpack(head)[0], deadline) if head else head

    def _read_bytes(self, size: int, deadline: float) -> bytes | None:
        # the announced number of bytes, because workers of the oracle's loaders keep the pipe open for seconds
        content = bytearray()
        while len(content) < size:
            if not select.select([self._pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return None
            data = os.read(self._pipe, min(1 << 20, size - len(content)))
            if not data:
                return b""
            content += data
        return bytes(content)


def _told(error: BaseException) -> str:
    if devices.is_out_of_memory(error) or isinstance(error, MemoryError):
        return TOO_LARGE
    return "in the process for one device {} fails with {}: {}".format(
        "echelon" if is_own_mistake(error) else "the script",
        type(error).__name__,
        str(error).partition("\n")[0],
    )
