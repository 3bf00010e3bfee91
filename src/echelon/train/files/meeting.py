"""The ranks meet around a change of the disk: rank 0 acts when all ranks have come, and tells them the result."""

import datetime
import os
from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

from .. import groups, messages
from .. import world as worlds
from ..scaling_error import ScalingError, of_rank_0
from . import names, nodes

_PATIENCE = datetime.timedelta(days=7)  # a download may take hours, and a rank that dies is noticed by its connection


class Told(NamedTuple):
    """The result of one act of rank 0."""

    act: str
    path: str
    place: names.Place
    value: Any
    error: Optional[BaseException]
    look: nodes.Look
    """The state of the path on rank 0's node after the act."""


def _same(value: Any) -> Any:
    return value


class Meeting:
    """The meeting of all ranks of a world; its messages never mix with those of gradients."""

    def __init__(self, world: worlds.World) -> None:
        self._world = world
        self._group: Any = None
        self._nodes = nodes.Nodes(os.environ)

    def lead(self, act: str, path: str, do: Callable[[], Any], tells: Callable[[Any], Any] = _same) -> Any:
        """On rank 0, act when all ranks have come, and tell them the result."""
        self._wait()
        place = names.here()
        try:
            value = do()
        except (Exception, ScalingError) as error:
            self._tell(Told(act, path, place, None, error, None))
            raise
        self._tell(Told(act, path, place, tells(value), None, self._nodes.look(path)))
        return value

    def follow(self, act: str, path: str, do: Callable[[], Any]) -> Tuple[Any, str]:
        """Return the result of rank 0's act and its path; raise the error that rank 0 raised.

        The first rank of a node that has a disk of its own acts there too.
        """
        self._wait()
        told = self._hear()
        if told.act != act or not names.are_alike(path, told.path, names.here(), told.place):
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

    def _tell(self, told: Told) -> None:
        # a returned value that cannot travel, such as an open file, is left out
        messages.broadcast(tuple(told), 0, self._group, leaves_out=True)

    def _hear(self) -> Told:
        told = Told(*messages.broadcast(None, 0, self._group))
        return told._replace(place=names.Place(*told.place))


def _parted(told: Told, act: str, path: str, rank: int) -> ScalingError:
    return ScalingError(
        "the ranks went different ways: rank 0 reaches %s %s, but rank %d reaches %s %s; the script decides on "
        "a number that differs between the ranks" % (told.act, told.path, rank, act, path),
        "let the script decide on the loss, which is the same on every rank, or start one rank: echelon run -n 1 …",
    )
