"""The ranks meet around a change of the disk: rank 0 acts when all ranks have come, and tells them the result."""

import datetime
import os
import re
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..scaling_error import ScalingError, of_rank_0
from ..wire import groups, messages
from ..wire import world as worlds

_DIGITS = re.compile(r"\d+")
_HEXADECIMAL = re.compile(r"(?=[a-f-]*\d)(?=[\d-]*[a-f])[0-9a-f][0-9a-f-]{6,}[0-9a-f]", re.IGNORECASE)
_TIME = re.compile(r"(?<!\d)20\d\d|\d\d\D?\d\d\D\d\d|\d{9}")  # 2026…, 21_16-04-05, seconds since 1970
Aliases = dict[str, str]


class ProcessName(NamedTuple):
    """The process id and the host name, which a process may put into a name."""

    pid: str
    host: str


def here() -> ProcessName:
    return ProcessName(str(os.getpid()), socket.gethostname())


def are_alike(own: str, theirs: str, own_place: ProcessName, their_place: ProcessName) -> bool:
    """Say whether two paths may name the same file of a script that one rank runs a moment later than another."""
    if own == theirs:
        return True
    parts, their_parts = own.split(os.sep), theirs.split(os.sep)
    return len(parts) == len(their_parts) and all(
        own_part == part or _shape(own_part, own_place) == _shape(part, their_place)
        for own_part, part in zip(parts, their_parts, strict=True)
    )


def _shape(name: str, place: ProcessName) -> str:
    """Return a name without the parts that depend on the process and the time."""
    name = name.replace(place.host, "<host>").replace(place.pid, "<pid>")
    name = _HEXADECIMAL.sub("<number>", name)
    return _DIGITS.sub("<time>", name) if _TIME.search(name) else name


def note(aliases: Aliases, own: str, theirs: str) -> None:
    """Remember rank 0's name for this rank's name of a file, or for the folder if only the folder differs."""
    while own != theirs:
        (folder, name), (their_folder, their_name) = os.path.split(own), os.path.split(theirs)
        if name != their_name:
            aliases[own] = theirs
            if folder == their_folder:
                return
        own, theirs = folder, their_folder


def translate(aliases: Aliases, path: str) -> str:
    part = path
    while part not in aliases:
        folder = os.path.dirname(part)
        if folder == part:
            return path
        part = folder
    return aliases[part] + path[len(part) :]


Look = tuple[tuple[int, ...], tuple[int, ...]] | None
"""The inode of a folder; and the inode, time and size of a name in it."""

_PATIENCE_SECONDS = 5.0  # a network file system may show an old state for this time (NFS: acdirmin is 30 s at most)


class SeparateFolders:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self.are_several = int(environ.get("WORLD_SIZE", "1")) > int(environ.get("LOCAL_WORLD_SIZE", "1"))
        self._is_first = environ.get("LOCAL_RANK", "0") == "0" and environ.get("RANK", "0") != "0"
        self._has_own: dict[str, bool] = {}

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


def _number(folder: str) -> tuple[int, ...]:
    try:
        return (os.stat(folder).st_ino,)
    except OSError:
        return ()


def _seen(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


_PATIENCE = datetime.timedelta(days=7)  # a download may take hours, and a rank that dies is noticed by its connection


class ActResult(NamedTuple):
    act: str
    path: str
    place: ProcessName
    value: Any
    error: BaseException | None
    look: Look
    """The state of the path on rank 0's node after the act."""


class Meeting:
    """The meeting of all ranks of a world; its messages never mix with those of gradients."""

    def __init__(self, world: worlds.World) -> None:
        self._world = world
        self._group: Any = None
        self._nodes = SeparateFolders(os.environ)

    def lead(
        self, act: str, path: str, do: Callable[[], object], tells: Callable[[object], object] = lambda value: value
    ) -> object:
        """On rank 0, act when all ranks have come, and tell them the result."""
        self._wait()
        place = here()
        try:
            value = do()
        except (Exception, ScalingError) as error:
            self._tell(ActResult(act, path, place, None, error, None))
            raise
        self._tell(ActResult(act, path, place, tells(value), None, self._nodes.look(path)))
        return value

    def follow(self, act: str, path: str, do: Callable[[], object]) -> tuple[Any, str]:
        """Return the result of rank 0's act and its path; raise the error that rank 0 raised.

        The first rank of a node that has a disk of its own acts there too.
        """
        self._wait()
        told = self._hear()
        if told.act != act or not are_alike(path, told.path, here(), told.place):
            raise _parted(told, act, path, self._world.rank)
        if told.error is not None:
            raise of_rank_0(told.error)
        if not self._nodes.has_own(path, told.path, told.look):
            return told.value, told.path
        return do(), path

    def end(self) -> None:
        """Wait until the other nodes have acted on disks of their own."""
        if self._nodes.are_several:
            dist.barrier(group=self._group)

    def _wait(self) -> None:
        """Tell rank 0 that this rank has come; other ranks do not wait for each other."""
        if self._group is None:
            worlds.join(self._world)
            self._group = groups.new(backend="gloo", timeout=_PATIENCE)
        dist.reduce(torch.zeros(1, device="cpu"), 0, group=self._group)

    def _tell(self, told: ActResult) -> None:
        # a returned value that cannot travel, such as an open file, is left out
        messages.broadcast(tuple(told), 0, self._group, leaves_out=True)

    def _hear(self) -> ActResult:
        told = ActResult(*messages.broadcast(None, 0, self._group))
        return told._replace(place=ProcessName(*told.place))


def _parted(told: ActResult, act: str, path: str, rank: int) -> ScalingError:
    return ScalingError(
        f"the ranks went different ways: rank 0 reaches {told.act} {told.path}, but rank {rank} reaches {act} {path}; "
        "the script decides on a number that differs between the ranks",
        "let the script decide on the loss, which is the same on every rank, or start one rank: echelon run -n 1 …",
    )
