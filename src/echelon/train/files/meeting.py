"""The ranks meet around what changes the disk: rank 0 acts when all have come, and tells them how it ended."""

import datetime
import os
import pickle
from typing import Any, Callable, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

from .. import world as worlds
from ..refusal import Refusal
from . import names, nodes

_HEAD_BYTES = 1024  # one message holds what most meetings tell
_LENGTH_BYTES = 8
_PATIENCE = datetime.timedelta(days=7)  # a download may take hours, and a rank that dies is noticed by its connection


class Told(NamedTuple):
    """What rank 0 says of one act."""

    act: str
    path: str
    place: names.Place
    value: Any
    error: Optional[BaseException]
    look: nodes.Look
    """What rank 0 sees of the path after the act."""


def _same(value: Any) -> Any:
    return value


class Meeting:
    """Where all ranks of a world meet; messages of files never mix with those of gradients."""

    def __init__(self, world: worlds.World) -> None:
        self._world = world
        self._group: Any = None
        self._nodes = nodes.Nodes(os.environ)

    def lead(self, act: str, path: str, do: Callable[[], Any], tells: Callable[[Any], Any] = _same) -> Any:
        """Act when all ranks have come, and tell the others how it ended; for rank 0."""
        self._wait()
        place = names.here()
        try:
            value = do()
        except (Exception, Refusal) as error:
            self._tell(Told(act, path, place, None, _that_travels(error), None))
            raise
        self._tell(Told(act, path, place, tells(value), None, self._nodes.look(path)))
        return value

    def follow(self, act: str, path: str, do: Callable[[], Any]) -> Tuple[Any, str]:
        """Return what rank 0's act gave, and the path that it took; raise what it raised.

        The first rank of a node that has a disk of its own acts there too.
        """
        self._wait()
        told = self._hear()
        if told.act != act or not names.are_alike(path, told.path, names.here(), told.place):
            raise _parted(told, act, path, self._world.rank)
        if told.error is not None:
            raise told.error
        if not self._nodes.has_own(path, told.path, told.look):
            return told.value, told.path
        return do(), path

    def end(self) -> None:
        """Wait until the other nodes have acted on disks of their own."""
        if self._nodes.are_several:
            dist.barrier(group=self._group)

    def _wait(self) -> None:
        """Let rank 0 know that all have come; the others need not wait for each other."""
        if self._group is None:
            worlds.join(self._world)
            self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)
        dist.reduce(torch.zeros(1, device="cpu"), 0, group=self._group)

    def _tell(self, told: Told) -> None:
        content = _packed(told)
        head = len(content).to_bytes(_LENGTH_BYTES, "little") + content
        self._send(head[:_HEAD_BYTES].ljust(_HEAD_BYTES, b"\0"))
        if len(head) > _HEAD_BYTES:
            self._send(head[_HEAD_BYTES:])

    def _hear(self) -> Told:
        head = self._receive(_HEAD_BYTES)
        size = int.from_bytes(head[:_LENGTH_BYTES], "little")
        content = head[_LENGTH_BYTES : _LENGTH_BYTES + size]
        if len(content) < size:
            content += self._receive(size - len(content))
        told: Told = pickle.loads(content)
        return told

    def _send(self, content: bytes) -> None:
        dist.broadcast(torch.tensor(list(content), dtype=torch.uint8, device="cpu"), 0, group=self._group)

    def _receive(self, num_bytes: int) -> bytes:
        tensor = torch.zeros(num_bytes, dtype=torch.uint8, device="cpu")
        dist.broadcast(tensor, 0, group=self._group)
        return bytes(tensor.tolist())


def _packed(told: Told) -> bytes:
    try:
        return pickle.dumps(told)
    except (pickle.PicklingError, TypeError, AttributeError):  # what a function returns that nobody asks for
        return pickle.dumps(told._replace(value=None))


def _that_travels(error: BaseException) -> BaseException:
    """Return an error that another process can raise: this one, or the nearest that except clauses know it by."""
    kind: Any
    for kind in type(error).__mro__:
        if not issubclass(kind, (Exception, Refusal)):
            break
        try:
            candidate = error if kind is type(error) else kind(str(error))
            pickle.loads(pickle.dumps(candidate))
        except (pickle.PicklingError, TypeError, AttributeError, ValueError):
            continue
        return candidate
    return RuntimeError(str(error))


def _parted(told: Told, act: str, path: str, rank: int) -> Refusal:
    return Refusal(
        "the ranks went different ways: rank 0 comes to %s %s where rank %d comes to %s %s; "
        "a number on which the script decides is not the same on all ranks" % (told.act, told.path, rank, act, path),
        "decide on the loss, which is the same on every rank, or start one rank: echelon run -n 1 …",
    )
