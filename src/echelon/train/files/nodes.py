"""Find nodes that have disks of their own: on each such disk, a file is written once."""

import os
import time
from typing import Dict, Mapping, Optional, Tuple

Look = Optional[Tuple[Tuple[int, ...], Tuple[int, ...]]]
"""The inode of a folder; and the inode, time and size of a name in it."""

_PATIENCE_SECONDS = 5.0  # a network file system may show an old state for this time (NFS: acdirmin is 30 s at most)


class Nodes:
    """The folders that this node does not share with the node of rank 0."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.are_several = int(environ.get("WORLD_SIZE", "1")) > int(environ.get("LOCAL_WORLD_SIZE", "1"))
        self._is_first = environ.get("LOCAL_RANK", "0") == "0" and environ.get("RANK", "0") != "0"
        self._has_own: Dict[str, bool] = {}

    def look(self, path: str) -> Look:
        """Return the state of a path; None if there is only one node."""
        return (_number(os.path.dirname(path)), _seen(path)) if self.are_several else None

    def has_own(self, path: str, theirs: str, look: Look) -> bool:
        """Say whether this rank is the rank that writes to its node's own disk."""
        if look is None or not self._is_first:
            return False
        folder = os.path.dirname(path)
        if folder not in self._has_own:
            self._has_own[folder] = not _shows(theirs, look)
        return self._has_own[folder]


def _shows(path: str, look: Look) -> bool:
    """Say whether a path looks here as on rank 0's node, or does so after a short wait."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (_number(os.path.dirname(path)), _seen(path)) != look:
        if look is None or _number(os.path.dirname(path)) != look[0] or time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _number(folder: str) -> Tuple[int, ...]:
    try:
        return (os.stat(folder).st_ino,)
    except OSError:
        return ()


def _seen(path: str) -> Tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size
