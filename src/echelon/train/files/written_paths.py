"""The paths that a run has written. While a loop is repeated, a path is not there before the script writes it again."""

import os
from typing import Dict, Mapping, Set

_lexists = os.path.lexists
_NOT_YET = ".not-yet-written-again"


class WrittenPaths:
    """Paths, each with whether it was there before the script wrote it.

    >>> written = WrittenPaths()
    >>> written.note("best.pt")
    >>> written.before
    {'best.pt': False}
    >>> written.repeat(written.before)
    >>> written.seen("best.pt"), written.seen("data.csv")
    ('best.pt.not-yet-written-again', 'data.csv')
    >>> written.note("best.pt")
    >>> written.seen("best.pt")
    'best.pt'
    """

    def __init__(self) -> None:
        self.before: Dict[str, bool] = {}
        self._absent: Set[str] = set()
        self._is_repeating = False

    def note(self, path: str) -> None:
        """Note that the script writes to a path."""
        if self._is_repeating:
            self._absent.discard(path)
        elif path not in self.before:
            self.before[path] = _lexists(path)

    def repeat(self, before: Mapping[str, bool]) -> None:
        """Begin to repeat a run that has written these paths."""
        self._is_repeating = True
        self.before = dict(before)
        self._absent = {path for path, was_there in before.items() if not was_there}

    def go_on(self) -> None:
        """End the repetition."""
        self._is_repeating = False
        self._absent = set()

    def seen(self, path: str) -> str:
        """Return the path to look for; one that never exists stands for a file that is not written again yet."""
        return path + _NOT_YET if path in self._absent else path
