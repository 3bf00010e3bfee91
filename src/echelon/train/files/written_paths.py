"""The paths that a run has written. While a loop is repeated, a path is not there before the script writes it again.

A killed run has also written files after its last checkpoint. A log has their paths.
"""

import os
from typing import Callable, Dict, Mapping, Set

from ...checkpoint import path_log
from ...checkpoint.errors import WriteError

_lexists = os.path.lexists
_NOT_YET = ".not-yet-written-again"


class WrittenPaths:
    """Paths, each with whether it was there before the script wrote it.

    >>> written = WrittenPaths()
    >>> written.note("best.pt")
    >>> written.before
    {'best.pt': False}
    >>> written.repeat(written.before, {})
    >>> written.seen("best.pt"), written.seen("data.csv")
    ('best.pt.not-yet-written-again', 'data.csv')
    >>> written.note("best.pt")
    >>> written.seen("best.pt")
    'best.pt'
    """

    def __init__(self) -> None:
        self.before: Dict[str, bool] = {}
        self._absent: Set[str] = set()
        self._later: Set[str] = set()
        self._log = ""
        self._say: Callable[[str], None] = lambda _: None
        self._is_repeating = False

    def log_to(self, path: str, say: Callable[[str], None]) -> None:
        """Add each new path to a log; say so once if that becomes impossible."""
        self._log, self._say = path, say

    def note(self, path: str) -> None:
        """Note that the script writes to a path."""
        was_there = path not in self._absent and _lexists(path)
        self._absent.discard(path)
        if not self._is_repeating and path not in self.before:
            self.before[path] = was_there
            if self._log:
                self._append(path, was_there=was_there)

    def _append(self, path: str, *, was_there: bool) -> None:
        try:
            path_log.append(self._log, path, was_there=was_there)
        except WriteError as error:
            self._log = ""
            self._say("note: %s; a run that continues this one may see files that it writes later" % error.message)

    def repeat(self, before: Mapping[str, bool], logged: Mapping[str, bool]) -> None:
        """Begin to repeat a run that has written these paths, and the logged ones perhaps after its checkpoint."""
        self._is_repeating = True
        self.before = dict(before)
        self._later = {path for path, was_there in logged.items() if path not in before and not was_there}
        self._absent = self._later | {path for path, was_there in before.items() if not was_there}

    def go_on(self) -> None:
        """End the repetition."""
        self._is_repeating = False
        self._absent &= self._later

    def seen(self, path: str) -> str:
        """Return the path to look for; one that never exists stands for a file that is not written again yet."""
        return path + _NOT_YET if path in self._absent else path
