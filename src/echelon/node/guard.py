"""The guard: a fork of the agent that ends the ranks if the agent itself is killed."""

import os
import signal
import socket
import time
from typing import Iterable, List

from ..environment import digits
from . import memory_folder, private, run_lock, sweep

_LOOK_SECONDS = 0.5


class Guard:
    """The agent's side: tell the guard which sessions to end, and dismiss it when the agent leaves."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid = pid
        self.link = link  # end of file means that the guard is gone

    def name(self, mark: str, secret: str, memory: str) -> None:
        """Send the mark of the processes to end, and the paths of the secret and of the folder in memory to remove."""
        self._write("mark:%s\nsecret:%s\nmemory:%s\n" % (mark, os.fsencode(secret).hex(), os.fsencode(memory).hex()))

    def watch(self, sessions: Iterable[int]) -> None:
        self._write("".join("%d\n" % session for session in sessions))

    def dismiss(self) -> None:
        self._write("bye\n")
        self.link.close()

    def _write(self, text: str) -> None:
        try:
            self.link.sendall(text.encode())
        except OSError:
            pass  # the guard was killed; the agent notices that and starts another


def start() -> Guard:
    """Fork a guard that is no descendant of the agent: Slurm kills descendants together with it.

    Call this before the agent imports its own modules, so that the guard keeps little memory.
    """
    ours, theirs = socket.socketpair()
    between = os.fork()
    if between == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                ours.close()
                _stand_guard(theirs)
        finally:
            os._exit(0)
    os.waitpid(between, 0)
    theirs.close()
    return Guard(int(ours.recv(16)), ours)


def _stand_guard(link: socket.socket) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    link.sendall(b"%d" % os.getpid())
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.closerange(3, link.fileno())  # a copy of the agent's connection would hide the agent's end from the supervisor
    os.closerange(link.fileno() + 1, 65536)
    heard = b""
    while True:
        data = link.recv(65536)
        if not data:
            break
        heard += data
    words = heard.decode().split()
    if "bye" not in words:
        mark = next((word[len("mark:") :] for word in words if word.startswith("mark:")), "none")
        sessions = {int(word) for word in words if digits.is_number(word)}
        sweep.kill_all(mark, sessions, sweep.Spared(frozenset({os.getpid()})), seconds=4.0)
        secret = _named(words, "secret:")
        remove_secret(secret)
        _remove_memory(_named(words, "memory:"), os.path.dirname(secret))
        remove_secret(secret)


def _named(words: List[str], key: str) -> str:
    """Return the path that the agent has sent; empty if it has sent none."""
    return next((os.fsdecode(bytes.fromhex(word[len(key) :])) for word in words if word.startswith(key)), "")


def remove_secret(path: str) -> None:
    """Remove the secret of a run whose supervisor is gone; a living one may start the agent again, and removes it."""
    if not run_lock.is_held(os.path.dirname(path)):
        private.remove(path)


def _remove_memory(folder: str, run_directory: str) -> None:
    """Remove the states in memory when the run is over; leave them to the next agent of this node if there is one."""
    if not folder:
        return
    owner = memory_folder.hold_for_another(folder)
    while run_lock.is_held(run_directory) and not memory_folder.was_taken(folder, owner):
        time.sleep(_LOOK_SECONDS)
    if not memory_folder.was_taken(folder, owner):
        private.remove_folder(folder)
