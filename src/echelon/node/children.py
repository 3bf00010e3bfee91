"""Children that have ended."""

import os
from typing import Iterator, Tuple


def ended() -> Iterator[Tuple[int, int]]:
    """Wait for every child that has ended; yield its process id and exit code, minus the signal if one ended it."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)
