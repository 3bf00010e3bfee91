"""A temporary folder that all nodes of a job see."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from echelon.errors import UsageError


@contextmanager
def shared_folder(name: str, why: str) -> Iterator[str]:
    """Make a hidden folder in the current one, because nodes do not share /tmp; remove it in any case.

    Raise UsageError, with the reason `why` the folder is needed, if it cannot be made.
    """
    try:
        folder = tempfile.mkdtemp(prefix=f".echelon-{name}-", dir=os.getcwd())
    except OSError as error:
        raise UsageError(
            f"echelon cannot write to {os.getcwd()}, and {why}: {error.strerror}",
            hint="cd to a folder of your own that every node sees",
        ) from None
    old = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for number, handler in old.items():
            signal.signal(number, handler)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
