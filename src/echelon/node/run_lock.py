"""Say whether the supervisor of a run or its keeper is alive: they hold the lock of the run's events."""

import fcntl
import os


def is_held(run_directory: str) -> bool:
    """Say whether a living process holds the lock; a file system without locks never says so."""
    try:
        with open(os.path.join(run_directory, "events.jsonl"), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
