"""The folder in the node's memory where ranks keep the newest state of a training: it outlives them, not the run.

The agent of the node holds the folder by a lock. When the agent is killed, its guard holds it, until another agent
takes it over or the run is over. A folder that nobody holds is removed by the next agent on the node.
"""

import fcntl
import os
import time
from typing import TYPE_CHECKING

from . import private

if TYPE_CHECKING:
    from .agent_spec import AgentSpec

VARIABLE = "ECHELON_MEMORY_FOLDER"  # in each rank: the path of the folder
_MEMORY = "/dev/shm"
_PREFIX = "echelon-memory-"
_OWNER = "owner"  # a file in the folder; each agent makes it anew
_NEW_SECONDS = 60.0  # a younger folder may be about to be held


def path(spec: "AgentSpec", agent_index: int) -> str:
    """Return the path for the ranks of an agent, and of one that replaces it; empty where they keep nothing in memory.

    Where each rank has an agent of its own, a neighbour may be on the same node, so nothing is kept.
    """
    if spec.launch == "tasks" or spec.mpi or not os.access(_MEMORY, os.W_OK):
        return ""
    return os.path.join(_MEMORY, "%s%s.%d" % (_PREFIX, spec.run_id, agent_index))


def hold(folder: str) -> str:
    """Make the folder, and hold it as long as this process lives; return it, or nothing if it is not the user's own.

    Folders that nobody holds any more are removed.
    """
    if not folder:
        return ""
    try:
        _remove_old(folder)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.path.islink(folder) or not private.is_own(folder):
            return ""
        _lock(folder, fcntl.LOCK_SH)
        private.write(os.path.join(folder, _OWNER), b"%d" % os.getpid())
    except OSError:
        return ""
    return folder


def hold_for_another(folder: str) -> int:
    """Hold the folder of an agent that was killed; return the number by which `was_taken` knows its owner."""
    try:
        _lock(folder, fcntl.LOCK_SH)
    except OSError:
        pass
    return _owner(folder)


def was_taken(folder: str, owner: int) -> bool:
    return _owner(folder) != owner


def _owner(folder: str) -> int:
    try:
        return os.stat(os.path.join(folder, _OWNER)).st_ino
    except OSError:
        return 0


def _lock(folder: str, how: int) -> int:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_old(wanted: str) -> None:
    """Remove the other folders of this user that nobody holds: their agents and guards were killed together."""
    for name in os.listdir(_MEMORY):
        folder = os.path.join(_MEMORY, name)
        try:
            is_old = (
                name.startswith(_PREFIX) and folder != wanted and time.time() - os.stat(folder).st_mtime > _NEW_SECONDS
            )
            if is_old and private.is_own(folder):
                descriptor = _lock(folder, fcntl.LOCK_EX)
                private.remove_folder(folder)
                os.close(descriptor)
        except OSError:
            continue  # it is held, or has just been removed
