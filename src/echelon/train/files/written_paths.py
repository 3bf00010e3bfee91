"""The paths that a run has written. While a loop is repeated, a path is not there before the script writes it again.

A killed run has also written files after its last checkpoint. A log has their paths.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...checkpoint import written
from ...checkpoint.errors import WriteError
from ...checkpoint.written import read

_lexists = os.path.lexists
_NOT_YET = ".not-yet-written-again"
LogPlace = Sequence[Any]
"""A place in the log: its number of entries, and the paths whose files are of after an earlier checkpoint there."""
NOTHING_LATER: LogPlace = (sys.maxsize, [])
"""The place in the log of a checkpoint that was saved before checkpoints had one."""


class WrittenPaths:
    """Paths, each with whether it was there before the script wrote it.

    >>> written = WrittenPaths()
    >>> written.note("best.pt")
    >>> written.before
    {'best.pt': False}
    >>> written.repeat(written.before, [], (0, []))
    >>> written.seen("best.pt"), written.seen("data.csv")
    ('best.pt.not-yet-written-again', 'data.csv')
    >>> written.note("best.pt")
    >>> written.seen("best.pt")
    'best.pt'
    """

    def __init__(self) -> None:
        self.before: dict[str, bool] = {}
        self.others: set[str] = set()
        """Paths of files that were there at the checkpoint, and have changed or gone since."""
        self.appended: set[str] = set()
        """The files to whose end the script writes: a checkpoint has their sizes."""
        self._num_logged = 0
        self._since: set[str] = set()
        """The logged paths that the script has changed since the latest state was saved or kept."""
        self._absent: set[str] = set()
        self._later: set[str] = set()
        self._log = ""
        self._say: Callable[[str], None] = lambda _: None
        self._is_repeating = False

    def log_to(self, path: str, say: Callable[[str], None]) -> None:
        """Add each new path to a log; say so once if that becomes impossible."""
        self._log, self._say = path, say
        self._num_logged = len(read(path))

    def place(self) -> LogPlace:
        self._since.clear()
        return self._num_logged, sorted(self.others)

    def note(self, path: str) -> None:
        was_there = path not in self._absent and _lexists(path)
        self._absent.discard(path)
        if self._is_repeating:
            return
        self.others.discard(path)
        if path not in self.before:
            self.before[path] = was_there
        elif path in self._since or path in self.appended:
            return
        self._since.add(path)
        if self._log:
            self._append(path, was_there=was_there)

    def tell_of_later(self, path: str) -> None:
        """Say once that a file is of a later step, where the log knows it."""
        self.others.discard(path)
        self._say(f"note: the script reads {path}, which it had written after the checkpoint: it is of a later step")

    def _append(self, path: str, *, was_there: bool) -> None:
        try:
            written.append(self._log, path, was_there=was_there)
            self._num_logged += 1
        except WriteError as error:
            self._log = ""
            self._say(f"note: {error.message}; a run that continues this one may see files that it writes later")

    def repeat(self, before: Mapping[str, bool], logged: Sequence[tuple[str, bool]], place: LogPlace) -> None:
        """Begin to repeat a run that has written these paths, and the logged ones behind a place later."""
        self._is_repeating = True
        self.before = dict(before)
        num_logged, others = place
        firsts = dict(reversed(logged))
        self._later = {path for path, was_there in firsts.items() if path not in before and not was_there}
        self.others = {*others, *(path for path, was_there in logged[num_logged:] if path in before or was_there)}
        self._absent = self._later | {path for path, was_there in before.items() if not was_there}

    def note_again(self, paths: Iterable[str]) -> None:
        """Note that the script has written these paths in what is not repeated."""
        self._absent.difference_update(paths)

    def go_on(self) -> None:
        self._is_repeating = False
        self._absent &= self._later

    def seen(self, path: str) -> str:
        """Return the path to look for; one that never exists stands for a file that is not written again yet."""
        return path + _NOT_YET if path in self._absent else path
