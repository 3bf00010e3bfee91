"""The guard: a fork of the agent that ends the ranks if the agent itself is killed, and writes the rest of their logs.

It has the ranks' pipes, too: what they print while the agent is stopped by a signal stays there.
"""

import os
import signal
import socket
import time
from contextlib import suppress
from typing import Any, Dict, Iterable, List, Sequence

from ..environment import digits
from . import memory_folder, private, sweep
from .output import left_in

_LOOK_SECONDS = 0.5
_PACKET_BYTES = 65536
_NUM_DESCRIPTORS = 3
_RELEASE = "release"


class Guard:
    """The agent's side: tell the guard which sessions to end, and dismiss it when the agent leaves."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid = pid
        self.link = link  # end of file means that the guard is gone

    def name(self, mark: str, secret: str, memory: str) -> None:
        """Send the mark of the processes to end, and the paths of the secret and of the folder in memory to remove."""
        self._write("mark:%s\nsecret:%s\nmemory:%s\n" % (mark, os.fsencode(secret).hex(), os.fsencode(memory).hex()))

    def watch(self, ranks: Iterable[Any]) -> None:
        """Let the guard have the session of each rank that was started, and a copy of its pipes."""
        for rank in ranks:
            output = rank.output
            self._write("%d\nlog:%s\n" % (rank.pid, os.fsencode(output.path).hex()), output.descriptors())

    def release(self) -> None:
        """Let the guard close its copies: the logs are whole."""
        self._write(_RELEASE + "\n")

    def dismiss(self) -> None:
        self._write("bye\n")
        self.link.close()

    def _write(self, text: str, descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self.link, [text.encode()], list(descriptors))
        except OSError:
            pass  # the guard was killed; the agent notices that and starts another


def start() -> Guard:
    """Fork a guard that is no descendant of the agent: Slurm kills descendants together with it.

    Call this before the agent imports its own modules, so that the guard keeps little memory.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # descriptors stay with their words
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
    words, outputs = _listen(link)
    if "bye" not in words:
        mark = next((word[len("mark:") :] for word in words if word.startswith("mark:")), "none")
        sessions = {int(word) for word in words if digits.is_number(word)}
        _write_rest(outputs)  # at once: the supervisor may show it soon
        sweep.kill_all(mark, sessions, sweep.Spared(frozenset({os.getpid()})), seconds=4.0)
        _write_rest(outputs)
        secret = _named(words, "secret:")
        remove_secret(secret)
        _remove_memory(_named(words, "memory:"), os.path.dirname(secret))
        remove_secret(secret)


def _listen(link: socket.socket) -> "tuple[List[str], Dict[str, List[int]]]":
    """Return the words of the agent when it is gone, and the descriptors of each log that is not whole then."""
    words: List[str] = []
    outputs: Dict[str, List[int]] = {}
    while True:
        data, descriptors, _flags, _address = socket.recv_fds(link, _PACKET_BYTES, _NUM_DESCRIPTORS)
        if not data:
            return words, outputs
        told = data.decode().split()
        path = _named(told, "log:")
        if path and len(descriptors) == _NUM_DESCRIPTORS:
            outputs[path] = descriptors
        if _RELEASE in told:
            for descriptor in (one for kept in outputs.values() for one in kept):
                os.close(descriptor)
            outputs.clear()
        words += told


def _write_rest(outputs: Dict[str, List[int]]) -> None:
    """Write into the logs what a killed agent had read of its ranks, and what was still in their pipes."""
    for path, (buffer, *pipes) in outputs.items():
        with suppress(OSError):  # a full disk, or a folder that is gone
            log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
            os.write(log, left_in(buffer))
            os.ftruncate(buffer, 0)
            for pipe in pipes:
                with suppress(BlockingIOError):
                    while data := os.read(pipe, _PACKET_BYTES):
                        os.write(log, data)


def _named(words: List[str], key: str) -> str:
    """Return the path that the agent has sent; empty if it has sent none."""
    return next((os.fsdecode(bytes.fromhex(word[len(key) :])) for word in words if word.startswith(key)), "")


def remove_secret(path: str) -> None:
    """Remove the secret of a run whose supervisor is gone; a living one may start the agent again, and removes it."""
    if not private.is_run_alive(os.path.dirname(path)):
        private.remove(path)


def _remove_memory(folder: str, run_directory: str) -> None:
    """Remove the states in memory when the run is over; leave them to the next agent of this node if there is one."""
    if not folder:
        return
    owner = memory_folder.hold_for_another(folder)
    while private.is_run_alive(run_directory) and not memory_folder.was_taken(folder, owner):
        time.sleep(_LOOK_SECONDS)
    if not memory_folder.was_taken(folder, owner):
        private.remove_folder(folder)
