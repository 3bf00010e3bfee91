"""Nodes may have disks of their own: what is written there is written once on each of them."""

import os
import time
from typing import Dict, Mapping, Optional, Tuple

Look = Optional[Tuple[Tuple[int, ...], Tuple[int, ...]]]
"""What a rank sees of a folder, and of a name in it."""

_PATIENCE_SECONDS = (
    5.0  # for which a network file system may show what was there before (NFS: acdirmin is 30 s at most)
)


class Nodes:
    """Which folders this node does not share with that of rank 0."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.are_several = int(environ.get("WORLD_SIZE", "1")) > int(environ.get("LOCAL_WORLD_SIZE", "1"))
        self._is_first = environ.get("LOCAL_RANK", "0") == "0" and environ.get("RANK", "0") != "0"
        self._has_own: Dict[str, bool] = {}

    def look(self, path: str) -> Look:
        """Return what is to be seen of a path; nothing where one node is all there is."""
        return (_number(os.path.dirname(path)), _seen(path)) if self.are_several else None

    def has_own(self, path: str, theirs: str, look: Look) -> bool:
        """Say whether this rank is the one that acts on a disk of its node's own."""
        if look is None or not self._is_first:
            return False
        folder = os.path.dirname(path)
        if folder not in self._has_own:
            self._has_own[folder] = not _shows(theirs, look)
        return self._has_own[folder]


def _shows(path: str, look: Look) -> bool:
    """Say whether a path looks here as it does on rank 0's node, or comes to do so."""
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
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size
