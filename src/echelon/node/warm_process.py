"""The agent's side of the warm process."""

import os
import signal
import socket
from typing import Any, Dict, List, Optional, Sequence, Tuple

from . import link, pool_place, sweep

STARTING, READY, UNUSABLE = "starting", "ready", "unusable"


class WarmProcess:
    """A process that imports once and then forks ranks on request."""

    def __init__(self, argv: List[str], environ: Dict[str, str], archive: str, stdout: int, stderr: int) -> None:
        ours, theirs = link.pair()
        self._begin(ours)
        os.set_inheritable(theirs.fileno(), True)
        try:
            hooked = with_hook(environ, archive)
            hooked["ECHELON_WARM_FD"] = str(theirs.fileno())
            stdin = open_input("")
            try:
                self.pid = spawn(argv, hooked, stdin, stdout, stderr)
            finally:
                os.close(stdin)
        finally:
            theirs.close()

    @classmethod
    def of_pool(
        cls, request: Dict[str, Any], folder: str, stdout: int, stderr: int
    ) -> "Tuple[Optional[WarmProcess], str]":
        """Ask the pool of this node for a warm process; return it, or None and why this run imports by itself.

        `request` has what the imports are; without a pool the reason is empty.
        """
        ours, theirs = link.pair()
        with theirs:
            message = {"kind": "lend", **request, **pool_place.surroundings()}
            answer = pool_place.ask(folder, message, [theirs.fileno(), stdout, stderr])
        if answer is None or answer["why_not"]:
            ours.close()
            return None, answer["why_not"] if answer is not None else ""
        lent = cls.__new__(cls)
        lent._begin(ours)
        lent.is_lent = True
        return lent, ""

    def _begin(self, ours: socket.socket) -> None:
        self.socket: socket.socket = ours
        self.state = STARTING
        self.why_not = ""
        self.report: Dict[str, Any] = {}
        self.pid = 0  # of a fork: not known before its first message
        self.is_lent = False

    def prepare(self, preload: List[str], folder: str, own: List[str], num_ranks: int) -> None:
        link.send(self.socket, {"preload": preload, "folder": folder, "own": own, "num_ranks": num_ranks})

    def fork(
        self,
        local_rank: int,
        environ: Dict[str, Optional[str]],
        cpus: Sequence[int],
        files: Sequence[int],
        argument: str = "",
        has_pulse: bool = False,
    ) -> None:
        """Request a rank; `files` are its three standard streams and, if they exist, its key and its pulse."""
        request = {
            "kind": "fork",
            "local_rank": local_rank,
            "environ": environ,
            "cpus": list(cpus),
            "argument": argument,
            "has_pulse": has_pulse,
        }
        link.send(self.socket, request, files)

    def receive(self) -> Optional[Dict[str, Any]]:
        """Return the next message; None if the process is gone."""
        packet = link.receive(self.socket)
        if packet is None:
            return None
        message = packet[0]
        if message["kind"] == "ready":
            self.report = message
            self.pid = self.pid or message["pid"]
            self.state = UNUSABLE if message["why_not"] else READY
            self.why_not = message["why_not"]
        return message

    def kill(self) -> None:
        """End the process at once, if it is known."""
        if self.pid > 0:
            sweep.send(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let the process end: it exits when its socket is closed."""
        self.state = UNUSABLE
        self.socket.close()


def with_hook(environ: Dict[str, str], archive: str) -> Dict[str, str]:
    """Return an environment in which Python runs start_hook.py before the script."""
    result = dict(environ)
    theirs = environ.get("PYTHONPATH")
    result["PYTHONPATH"] = archive if not theirs else archive + os.pathsep + theirs
    if theirs is not None:
        result["ECHELON_PYTHONPATH"] = theirs
    result["ECHELON_LIVE"] = "1"
    return result


def reason_against(argv: List[str], archive: str) -> str:
    """Return why this interpreter may not run the start hook; empty if it will."""
    if os.pathsep in archive:
        return "PYTHONPATH cannot hold %s, whose name has a %r" % (archive, os.pathsep)
    path = os.path.realpath(argv[0])
    try:
        with open(path, "rb") as file:
            is_binary = file.read(4) == b"\x7fELF"
    except OSError:
        return ""  # starting it will fail too, with a better error
    return "" if is_binary else "%s is a wrapper, which may drop PYTHONPATH" % argv[0]


__all__ = ["READY", "STARTING", "UNUSABLE", "CannotStart", "WarmProcess", "reason_against", "with_hook"]


class CannotStart(Exception):
    """The program cannot be executed on this node."""


def open_input(path: str) -> int:
    """Open a rank's standard input: a terminal, pipe or file; an empty input if it cannot be opened here."""
    try:
        return os.open(path or os.devnull, os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return os.open(os.devnull, os.O_RDONLY)


def spawn(argv: List[str], environ: Dict[str, str], stdin: int, stdout: int, stderr: int) -> int:
    """Start a program in its own session; return its process id."""
    all_signals = set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}
    try:
        return os.posix_spawnp(
            argv[0],
            argv,
            environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, stdin, 0),
                (os.POSIX_SPAWN_DUP2, stdout, 1),
                (os.POSIX_SPAWN_DUP2, stderr, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=all_signals,
        )
    except OSError as error:
        raise CannotStart("%s: %s" % (argv[0], error.strerror)) from None


def merged(environ: Dict[str, str], changes: Dict[str, Optional[str]]) -> Dict[str, str]:
    """Return the environment with the changes; None removes a variable."""
    result = dict(environ)
    for name, value in changes.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = value
    return result
