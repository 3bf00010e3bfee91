"""Let one rank write the files that every rank of a single-device script would write: whole, once, before any read.

All ranks run the script in lockstep. Rank 0 makes every change of the disk, when all ranks have come to that place and
before any rank continues. Between two changes the disk does not change, so each rank may read it by itself, in any
way, and all ranks get the same results.
"""

import os
import re
import shutil
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from ...checkpoint.written import read
from ..scaling_error import ScalingError
from ..wire.world import alone
from . import askers, whole
from .meeting import Aliases, Meeting, note, translate
from .written_paths import LogPlace, WrittenPaths

TOGETHER, EACH, ONE = "together", "each", "one"
_SYSTEM = ("/dev/", "/proc/", "/sys/")
_REMOVALS = ("remove", "unlink", "rmdir", "rmtree")
_SHARED_MEMORY = "/dev/shm/"


def path_of(file: object) -> str | None:
    """Return the absolute path of a file argument; None if it is not a path, such as an open file."""
    return os.path.abspath(os.fsdecode(file)) if isinstance(file, (str, bytes, os.PathLike)) else None


def _is_of_the_system(path: str) -> bool:
    """Say whether a path is no file on a disk: a device, or shared memory whose name contains the process id.

    Other shared memory is a disk: a user may have set TMPDIR to it.
    """
    if path.startswith(_SHARED_MEMORY):
        return str(os.getpid()) in re.findall(r"\d+", path.split(os.sep)[3])
    return path.startswith(_SYSTEM)


class Files:
    """The script's access to files by name, and the rank that performs it."""

    def __init__(self, *, is_closed: bool, before_meeting: Callable[[], None] = lambda: None) -> None:
        self._is_closed = is_closed
        self._before_meeting = before_meeting
        self.meeting: Meeting | None = None
        self.silence_loggers: Callable[[], None] = lambda: None
        """Silences the loggers that have not started."""
        self.num_fetches = 0
        """The number of fetches of samples that are running; each rank fetches other samples."""
        self.is_leaving = False
        self._pid = os.getpid()
        self._num_acts = 0
        self._aliases: Aliases = {}
        self._open: set[str] = set()
        self._hidden: set[str] = set()
        self._mapped: set[str] = set()
        self._own: list[str] = []
        self._own_before = 0
        self._writers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._sinks: weakref.WeakSet[Any] = weakref.WeakSet()
        self._suspended: Meeting | None = None
        self.written: WrittenPaths | None = None
        """The paths that the script has written, where its training is saved."""

    @property
    def is_closed(self) -> bool:
        """Whether this process writes nothing that the script shares among ranks."""
        return self._is_closed

    @is_closed.setter
    def is_closed(self, is_closed: bool) -> None:
        """Close a fork of the process that writes: its open files lead to the null device from now on."""
        self._is_closed = is_closed
        if is_closed:
            nothing = os.open(os.devnull, os.O_WRONLY)
            for file in list(self._writers):
                if not file.closed:
                    os.dup2(nothing, file.fileno())
            os.close(nothing)

    def close_fork(self) -> None:
        """Let this fork of rank 0 write and log nothing from now on."""
        self.is_closed = True
        self._own_before = len(self._own)
        self.silence_loggers()

    def remove_own(self) -> None:
        """Remove the files that this fork made for itself, because it does not reach its own end."""
        for path in self._own[self._own_before :]:
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            elif os.path.exists(path):
                os.remove(path)

    def way(self, path: str | None) -> str:
        """Choose how a path is accessed: by rank 0 when all have come, by each rank, or by one without a meeting."""
        if path is None or self.is_acting or _is_of_the_system(path) or self.is_own(path):
            return EACH
        if whole.is_beside(path):
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
        return ONE if self._is_apart else TOGETHER  # a fork of this process meets no rank

    @property
    def _is_apart(self) -> bool:
        return os.getpid() != self._pid or self.is_leaving or self.meeting is None

    @property
    def is_fetching(self) -> bool:
        """Whether this rank or a worker fetches samples, so that other ranks may write the same file."""
        return self.num_fetches > 0 or torch.utils.data.get_worker_info() is not None

    def act(
        self,
        label: str,
        file: object,
        do: Callable[[], object],
        *,
        tells: Callable[[Any], object] = lambda value: value,
        instead: object = None,
    ) -> Any:
        """Access a file in its way; on ranks that do not act, return rank 0's result, or `instead`."""
        path = path_of(file)
        whole.show(path)
        way = self.way(path)
        if way == EACH:
            return do()
        if path is not None and do is not _nothing:
            self.note_written(path)
        if way == ONE or path is None or self.meeting is None:
            self._open.add(path or "")  # nobody knows when the file is whole
            return instead if self.is_closed else do()
        self._num_acts += 1  # file access inside of this act is a part of it
        try:
            if not self.is_closed:
                return self.meeting.lead(label, path, partial(_alone, label, do), tells)
            told, theirs = self.meeting.follow(label, path, do)
            note(self._aliases, path, theirs)
            return told
        finally:
            self.meeting.end()
            self._num_acts -= 1

    @property
    def is_acting(self) -> bool:
        """Whether this access is a part of an act that ranks have met for; other threads are no part of it."""
        return self._num_acts > 0 and threading.current_thread() is threading.main_thread()

    def note_written(self, path: str) -> None:
        """Note that the script changes what is at a path."""
        if self.written is not None:
            self.written.note(path)

    def meet(self, label: str, file: object) -> None:
        """Wait for all ranks, if this rank meets them for this file."""
        path = path_of(file)
        if path is not None and self.way(path) == TOGETHER:
            self.act(label, path, _nothing)

    def suspend(self, written: Mapping[str, bool], log: str, place: LogPlace) -> None:
        """Write nothing and meet no rank for now: a loop is repeated whose files are on the disk.

        `written` are the paths that the run has written, each with whether it was there before; `log` also has those
        of after the checkpoint, behind `place`.
        """
        self.written = WrittenPaths()
        self.written.repeat(written, read(log), place)
        self._suspended, self.meeting = self.meeting, None
        self._is_closed = True

    def sizes(self) -> dict[str, int]:
        """Return the size of each file that rank 0 has written and may write to again, by its path."""
        if self._is_closed:
            return {}
        meeting, self.meeting = self.meeting, None  # no other rank asks
        try:
            for file in list(self._writers):
                if not file.closed:
                    file.flush()
            return {path: os.path.getsize(path) for path in sorted(self._open) if os.path.isfile(path)}
        finally:
            self.meeting = meeting

    def go_on(self, sizes: Mapping[str, int], *, is_closed: bool) -> None:
        """End `suspend`: files that are open for writing are the script's own again, and as long as they were."""
        self._is_closed = is_closed
        if self.written is not None:
            self.written.go_on()
        if not is_closed:
            for path, size in sizes.items():
                if os.path.isfile(path) and os.path.getsize(path) > size:
                    os.truncate(path, size)  # lines of steps that are computed again
            for sink in list(self._sinks):
                if not sink.closed:
                    sink.become_real()
                    self._writers.add(sink)
        self.meeting = self._suspended

    def seen(self, file: object) -> Any:
        """Return the path to read: rank 0's name of the file, after rank 0 has written it so far."""
        if not self._open and not self._aliases and self.written is None:
            return file
        path = path_of(file)
        if path is None or self.is_acting:
            return file
        if self.written is not None and self.written.seen(path) != path:
            return self.written.seen(path)
        whole.show(path)
        if path in self._open or self._is_hidden_in(path):
            self.meet("read", path)
        theirs = self.theirs(path)
        return file if theirs == path else theirs

    def note_mode(self, path: str | None, mode: str) -> None:
        if self.written is not None and path is not None:
            (self.written.appended.add if "a" in mode else self.written.appended.discard)(path)

    def was_done_later(self, name: str, path: str | None, source: str | None) -> bool:
        """Say whether the run has changed the disk in this way after its checkpoint, so that it cannot do it again."""
        if self.written is None or path is None:
            return False
        if name in ("mkdir", "makedirs"):
            return self.written.seen(path) != path and whole.is_there(path)
        gone = path if name in _REMOVALS else source
        return gone in self.written.others and not whole.is_there(str(gone))

    def tell_of_later(self, path: str | None) -> None:
        """Say that the script reads a file which it changed after the checkpoint; refuse one that it has removed."""
        if self.written is None or path not in self.written.others or self.is_acting:
            return
        if not whole.is_there(str(path)):
            raise ScalingError(
                f"the script reads {path}, which it has removed after the checkpoint: what was in it is lost",
                "start it without --resume",
            )
        self.written.tell_of_later(str(path))

    def theirs(self, path: str) -> str:
        return translate(self._aliases, path)

    def _is_hidden_in(self, folder: str) -> bool:
        """Say once whether this folder has a file that rank 0 may not have shown yet."""
        found = {path for path in self._hidden if os.path.dirname(path) == folder}
        self._hidden -= found
        return bool(found)

    def begin_writing(self, path: str, file: object, *, is_hidden: bool = False) -> None:
        """Note that a file is open for writing; its readers have to wait until rank 0 is there too."""
        self._open.add(path)
        self.note_written(path)
        if is_hidden:
            self._hidden.add(path)
        if not self.is_closed:
            self._writers.add(file)

    def note_sink(self, sink: object) -> None:
        self._sinks.add(sink)

    def end_writing(self, path: str) -> None:
        """Wait until a closed file is whole; readers keep waiting for a file that nobody closed."""
        if sys.exc_info()[1] is None and self.way(path) == TOGETHER:
            self.act("close", path, _nothing)
            self._hidden.discard(path)
            if path not in self._mapped:
                self._open.discard(path)

    def note_mapped(self, path: str) -> None:
        """Note that a file may be mapped into memory, as by numpy.memmap: nobody sees when it is written."""
        self._mapped.add(path)

    def is_own(self, path: str) -> bool:
        return bool(self._own) and any(path == own or path.startswith(own + os.sep) for own in self._own)

    def keep_own(self, file: object) -> None:
        """Note that no other rank has this file or folder: tempfile's names differ between processes."""
        path = path_of(file)
        if path is not None:
            self._own.append(path)


def _nothing() -> None:
    """Only meet the other ranks."""


def _alone(label: str, do: Callable[[], object]) -> object:
    with alone(label):
        return do()
