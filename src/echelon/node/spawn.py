"""Start a rank as a new process: when a fork is unsafe, or the program is not Python."""

import os
import signal
from typing import Dict, List, Optional


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
