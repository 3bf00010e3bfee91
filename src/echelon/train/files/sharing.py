"""Let one rank write what every rank of a single-device script would: whole, once, and before anyone reads it.

All ranks run the script in lockstep. Whatever changes the disk is done by rank 0, when all have come to that place and
before any goes on; between two changes the disk stands still, so that ranks may ask it whatever they like, each for
itself and in whatever way, and get the same answers.
"""

import os
import re
import shutil
import sys
import threading
import weakref
from functools import partial
from typing import Any, Callable, List, Optional, Set

import torch

from ..single_rank import alone
from . import askers, names
from .meeting import Meeting

TOGETHER, EACH, ONE = "together", "each", "one"
_SYSTEM = ("/dev/", "/proc/", "/sys/")
_SHARED_MEMORY = "/dev/shm/"


def path_of(file: Any) -> Optional[str]:
    """Return the absolute path that is meant; None for what is not a path, such as an open file."""
    return os.path.abspath(os.fsdecode(file)) if isinstance(file, (str, bytes, os.PathLike)) else None


def _is_of_the_system(path: str) -> bool:
    """Say whether a path is no file of a disk: a device, or what a process has in shared memory under its number.

    Else shared memory is a disk like others: who has set TMPDIR to it trains there.
    """
    if path.startswith(_SHARED_MEMORY):
        return str(os.getpid()) in re.findall(r"\d+", path.split(os.sep)[3])
    return path.startswith(_SYSTEM)


class Files:
    """What the script does to files by name, and which rank does it."""

    def __init__(self, *, is_closed: bool, before_meeting: Callable[[], None] = lambda: None) -> None:
        self._is_closed = is_closed
        self._before_meeting = before_meeting
        self.meeting: Optional[Meeting] = None
        self.silence_loggers: Callable[[], None] = lambda: None
        """Lets loggers that have not begun yet keep nothing."""
        self.num_fetches = 0
        """How many calls for samples are going on: each rank has other samples."""
        self.is_leaving = False
        self._pid = os.getpid()
        self._num_acts = 0
        self._aliases: names.Aliases = {}
        self._open: Set[str] = set()
        self._mapped: Set[str] = set()
        self._own: List[str] = []
        self._own_before = 0
        self._writers: "weakref.WeakSet[Any]" = weakref.WeakSet()

    @property
    def is_closed(self) -> bool:
        """Whether this process writes nothing that the script shares among ranks."""
        return self._is_closed

    @is_closed.setter
    def is_closed(self, is_closed: bool) -> None:
        """Close a fork of the process that writes: what it has open leads nowhere from now on."""
        self._is_closed = is_closed
        if is_closed:
            nothing = os.open(os.devnull, os.O_WRONLY)
            for file in list(self._writers):
                if not file.closed:
                    os.dup2(nothing, file.fileno())
            os.close(nothing)

    def close_fork(self) -> None:
        """Let this fork of the process that writes and logs do neither from now on, whatever it does later."""
        self.is_closed = True
        self._own_before = len(self._own)
        self.silence_loggers()

    def remove_own(self) -> None:
        """Remove what this fork has made for itself, as it will not come to its own end."""
        for path in self._own[self._own_before :]:
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            elif os.path.exists(path):
                os.remove(path)

    def way(self, path: Optional[str]) -> str:
        """Say how something is done to a path: by rank 0 when all have come, by each rank, or by one that just does."""
        if path is None or self.is_acting or _is_of_the_system(path) or self.is_own(path):
            return EACH
        if torch.utils.data.get_worker_info() is not None:
            return EACH
        if self.num_fetches and threading.current_thread() is threading.main_thread():
            return EACH
        asker = askers.who()
        if asker == askers.ITSELF:
            return EACH
        if self._is_apart or asker == askers.ANYBODY:
            return ONE
        self._before_meeting()
        return ONE if self._is_apart else TOGETHER  # in a fork of this process, which meets nobody

    @property
    def _is_apart(self) -> bool:
        return os.getpid() != self._pid or self.is_leaving or self.meeting is None

    @property
    def is_fetching(self) -> bool:
        """Whether samples are being fetched, here or in a worker: then other ranks may write the same file too."""
        return self.num_fetches > 0 or torch.utils.data.get_worker_info() is not None

    def act(
        self,
        what: str,
        file: Any,
        do: Callable[[], Any],
        *,
        tells: Callable[[Any], Any] = lambda value: value,
        instead: Any = None,
    ) -> Any:
        """Do something to a file as it has to be done; on ranks that do not, return what rank 0 tells, or `instead`."""
        path = path_of(file)
        way = self.way(path)
        if way == EACH:
            return do()
        if way == ONE or path is None or self.meeting is None:
            self._open.add(path or "")  # it is not known when it is whole
            return instead if self.is_closed else do()
        self._num_acts += 1  # what is done to files in its turn is a part of it
        try:
            if not self.is_closed:
                return self.meeting.lead(what, path, partial(_alone, what, do), tells)
            told, theirs = self.meeting.follow(what, path, do)
            names.note(self._aliases, path, theirs)
            return told
        finally:
            self.meeting.end()
            self._num_acts -= 1

    @property
    def is_acting(self) -> bool:
        """Whether what is asked is a part of something that ranks have met for; other threads are none of it."""
        return self._num_acts > 0 and threading.current_thread() is threading.main_thread()

    def meet(self, what: str, file: Any) -> None:
        """Wait for all ranks, where that can be."""
        path = path_of(file)
        if path is not None and self.way(path) == TOGETHER:
            self.act(what, path, lambda: None)

    def seen(self, file: Any) -> Any:
        """Return the path to read: rank 0's name of it, once what it has written until now is there."""
        if not self._open and not self._aliases:
            return file
        path = path_of(file)
        if path is None or self.is_acting:
            return file
        if path in self._open:
            self.meet("read", path)
        theirs = self.theirs(path)
        return file if theirs == path else theirs

    def theirs(self, path: str) -> str:
        """Return rank 0's name of a path."""
        return names.translate(self._aliases, path)

    def begin_writing(self, path: str, file: Any) -> None:
        """Take note of a file that is open for writing: whoever reads it has to wait for rank 0 to come there too."""
        self._open.add(path)
        if not self.is_closed:
            self._writers.add(file)

    def end_writing(self, path: str) -> None:
        """Wait for a file that was closed to be whole; one that nobody closed stays one to wait for."""
        if sys.exc_info()[1] is None and self.way(path) == TOGETHER:
            self.act("close", path, lambda: None)
            if path not in self._mapped:
                self._open.discard(path)

    def note_mapped(self, path: str) -> None:
        """Take note of a file that may be in memory, such as numpy.memmap: nobody sees when it is written there."""
        self._mapped.add(path)

    def is_own(self, path: str) -> bool:
        """Say whether a path is one that this process made for itself."""
        return bool(self._own) and any(path == own or path.startswith(own + os.sep) for own in self._own)

    def keep_own(self, file: Any) -> None:
        """Take note of a file or folder that no other rank has: tempfile's names differ from process to process."""
        path = path_of(file)
        if path is not None:
            self._own.append(path)


def _alone(what: str, do: Callable[[], Any]) -> Any:
    with alone(what):
        return do()
