"""The guard: a fork of the agent that ends the ranks when the agent itself is killed."""

import os
import signal
from typing import Iterable

from . import sweep


class Guard:
    """The agent's side: tells the guard which sessions to end, and that all is well when the agent leaves."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self._pipe = pipe

    def watch(self, sessions: Iterable[int]) -> None:
        self._write("".join("%d\n" % session for session in sessions))

    def dismiss(self) -> None:
        self._write("bye\n")
        os.close(self._pipe)

    def _write(self, text: str) -> None:
        try:
            os.write(self._pipe, text.encode())
        except OSError:
            pass  # the guard itself was killed; the agent still stands


def start(mark: str) -> Guard:
    """Fork a guard; call it before the agent opens anything that must not be shared."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(reading)
        return Guard(pid, writing)
    try:
        os.close(writing)
        _stand_guard(reading, mark)
    finally:
        os._exit(0)


def _stand_guard(pipe: int, mark: str) -> None:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # Slurm signals the whole tree; only the agent's end matters here
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.closerange(3, pipe)  # a copy of the agent's connection here would hide the agent's end from the supervisor
    os.closerange(pipe + 1, 65536)
    heard = b""
    while True:
        data = os.read(pipe, 65536)
        if not data:
            break
        heard += data
    words = heard.decode().split()
    if "bye" not in words:
        sweep.kill_all(mark, {int(word) for word in words}, {os.getpid()}, seconds=4.0)
