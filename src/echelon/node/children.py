"""Reap children that have ended."""

import os
from typing import Iterator, Tuple


def ended() -> Iterator[Tuple[int, int]]:
    """Wait for every ended child; yield its process id and exit code, or minus the signal that ended it."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)
