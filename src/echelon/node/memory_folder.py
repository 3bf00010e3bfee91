"""The folder in the node's memory where ranks keep the newest state of a training: it outlives them, not the run."""

import fcntl
import os

from . import private

VARIABLE = "ECHELON_MEMORY_FOLDER"  # in each rank: the path of the folder
_MEMORY = "/dev/shm"


def path(run_id: str, agent_index: int) -> str:
    """Return the path for the ranks of an agent, and of one that replaces it; empty where memory has no files."""
    return os.path.join(_MEMORY, "echelon-memory-%s.%d" % (run_id, agent_index)) if os.access(_MEMORY, os.W_OK) else ""


def hold(folder: str) -> str:
    """Make the folder, and hold it as long as this process lives; return it, or nothing if it is not the user's own."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.path.islink(folder) or not private.is_own(folder):
            return ""
        fcntl.flock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return ""
    return folder


def is_held(folder: str) -> bool:
    """Say whether an agent holds the folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return False
