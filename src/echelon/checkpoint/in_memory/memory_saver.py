"""Keep the newest state in memory: each rank's share on its own node, and on the next one, which outlives it."""

import json
import os
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional

import torch

from .. import host_memory, shards, tensors_file
from ..errors import CheckpointError
from ..manifest import WrittenFile
from ..saver import Save, Saver, text_of, versions_here, write_copies
from . import transfer
from .nodes import Nodes
from .pace import Pace

SAVE = "save"
"""In the manifest: the name of the save, equal on all nodes."""
PATIENCE_SECONDS = 120.0
SHARE_OF_AVAILABLE = 0.5
"""The most that states in memory may take of what is available on a node."""
_NUM_HELD = 3
"""The states that a node holds at the same time: two whole ones, and one that is being written."""
_POLL_SECONDS = 0.005
_LOOK_SECONDS = 60.0


class State(NamedTuple):
    """What is kept of a training."""

    tensors: Mapping[str, torch.Tensor]
    documents: Mapping[str, bytes]
    about: Mapping[str, Any]


class MemorySaver(Saver):
    """Keeps states in a folder of each node's memory, as often as it costs little; all ranks call it at the same steps.

    `folder` is that of this rank's node, and no other node's; it is empty where the node has none, and None where no
    node has one. `new_group` makes a group of gloo of all ranks, in which
    shares travel. What cannot be kept any more is a line of rank 0, once, and the training goes on.
    """

    def __init__(
        self,
        folder: Optional[str],
        rank: int,
        num_ranks: int,
        new_group: Callable[[], Any],
        say: Callable[[str], None],
        *,
        available_bytes: Callable[[], int] = host_memory.available_bytes,
    ) -> None:
        super().__init__(folder or os.devnull, rank, num_ranks, keep=2, say=say, available_bytes=available_bytes)
        self._path = folder or ""
        self._is_on = folder is not None
        self._next_step = 1
        self._pace = Pace()
        self._waited_seconds = 0.0
        self._new_group = new_group
        self._transfer_group: Any = None
        self._nodes = Nodes([self._path])
        self._fitting: List[int] = []
        self._mistake = ""
        self._read_next = 0.0
        self._bytes = 0

    def keep(self, step: int, state: Callable[[], State]) -> None:
        """Keep the state of this step, if it is time; `state` is asked for it only then."""
        if not self._is_on or step < self._next_step:
            return
        began = time.monotonic()
        self.save(step, *state())
        self._pace.end(step, time.monotonic() - began, self._waited_seconds)

    def _tell_all(
        self, step: int, tensors: Mapping[str, torch.Tensor], documents: Mapping[str, bytes]
    ) -> List[Dict[str, Any]]:
        began = time.monotonic()
        told = super()._tell_all(step, tensors, documents)
        self._waited_seconds = time.monotonic() - began
        self._next_step = step + told[0]["steps"]
        if not any(one["node"] for one in told):
            self._is_on = False  # as the user wishes
        if not any(one["mistake"] for one in told):
            self._meet([one["node"] for one in told])
        return told

    def _words(self, step: int) -> Dict[str, Any]:
        return {
            "mistake": self._mistake if self._path else "its node has no folder in memory",
            "node": self._path,
            "available": self._available(),
            "steps": self._pace.begin(step, self.durations.written_seconds),
        }

    def _available(self) -> int:
        """Return the bytes that states may still take on this node; it is read once a minute."""
        if self._path and time.monotonic() >= self._read_next:
            self._read_next = time.monotonic() + _LOOK_SECONDS
            self._bytes = _left(self._path, self._available_bytes())
        return self._bytes

    def _meet(self, nodes: List[str]) -> None:
        if len(nodes) > 1 and self._transfer_group is None:
            self._nodes = Nodes(nodes)
            self._transfer_group = self._new_group() if self._nodes.are_many else ()

    def _why_not(self, share: shards.Share, told: List[Dict[str, Any]]) -> str:
        if share.num_bytes == self._fitting:
            return ""
        self._fitting = share.num_bytes
        for leader in self._nodes.leaders:
            beside = self._nodes.ranks_beside(leader)
            kept = [rank for one in beside for rank in self._nodes.kept_by(one)] if self._nodes.are_many else []
            copies = sum(host_memory.needed_bytes(share.num_bytes[rank]) for rank in beside)
            needed = copies + _NUM_HELD * sum(share.num_bytes[rank] for rank in [*beside, *kept])
            available = min(told[rank]["available"] for rank in beside)
            if needed > available * SHARE_OF_AVAILABLE:
                return "%s has %.1f GiB of memory available, and states in it would need %.1f GiB" % (
                    told[leader]["host"], available / 2**30, needed / 2**30,
                )  # fmt: skip
        return ""

    def _fits(self, share: shards.Share, hosts: List[str]) -> bool:  # noqa: ARG002
        return True

    def _refuse(self, step: int, why: str, draft: str) -> None:
        """Leave out a save that comes too early; after a mistake, keep nothing any more."""
        if self._rank == 0 and draft:
            self._folder.join(draft).discard()
        if self._is_on and not self._is_busy(why):
            self._is_on = False
            if self._rank == 0:
                self._say("keeps no states in the memory of nodes from step %d on: %s" % (step, why))

    def _finish(self, save: Save, written: Optional[WrittenFile], mistake: str) -> None:
        """Write this rank's share, and the one that it keeps; the first rank of the node publishes them."""
        try:
            if mistake or written is not None:
                raise CheckpointError(mistake or "the share was written in parts")
            self._close(save, self._write(save))
        except Exception as error:  # noqa: BLE001  (whatever it is, the next save tells it, and the training goes on)
            self._mistake = text_of(error)
            _report(self._draft_path(save), self._rank, {}, self._mistake)
        self.durations = self.durations._replace(written_seconds=time.monotonic() - save.began)

    def _draft_path(self, save: Save) -> str:
        return os.path.join(self._path, save.name)

    def _write(self, save: Save) -> Dict[str, WrittenFile]:
        """Return what this rank has written; a rank that cannot write lets no other rank wait for it."""
        files: Dict[str, WrittenFile] = {}
        mistake: Optional[CheckpointError] = None
        try:
            draft = self._folder.join(save.name)
            files[save.share.file] = write_copies(draft, save.share, self._copies)
            if self._rank == 0:
                for name, content in {**save.documents, tensors_file.NAME: save.share.document}.items():
                    files[name] = draft.write(name, content)
        except CheckpointError as error:
            mistake, files = error, {}
        if self._nodes.are_many:
            keeper, kept = self._nodes.keeper_of(self._rank), self._nodes.kept_by(self._rank)
            files.update(transfer.pass_on(files, self._draft_path(save), keeper, kept, self._transfer_group))
        if mistake is not None:
            raise mistake
        return files

    def _close(self, save: Save, files: Dict[str, WrittenFile]) -> None:
        folder = self._draft_path(save)
        if self._rank != self._nodes.leader_of(self._rank):
            _report(folder, self._rank, files, "")
            return
        for rank in self._nodes.ranks_beside(self._rank)[1:]:
            files.update(_files_of(folder, rank))
        about = {**save.about, SAVE: save.name}
        draft = self._folder.join(save.name)
        self.published = draft.publish(files, num_ranks=self._num_ranks, about=about, versions=versions_here())


def _left(folder: str, in_memory: int) -> int:
    """Return the bytes that files in the memory may still take: its file system may have a limit of its own."""
    status = os.statvfs(os.path.dirname(folder))
    return min(in_memory, status.f_bavail * status.f_frsize)


def _report(folder: str, rank: int, files: Mapping[str, WrittenFile], mistake: str) -> None:
    """Tell the first rank of the node what this rank has written: a file that appears as a whole."""
    path = _report_path(folder, rank)
    try:
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump({"mistake": mistake, "files": {name: list(one) for name, one in files.items()}}, file)
        os.rename(path + ".part", path)
    except OSError:
        pass  # the first rank has given this save up


def _files_of(folder: str, rank: int) -> Dict[str, WrittenFile]:
    """Return what a rank of this node has written, when it says so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not os.path.exists(_report_path(folder, rank)):
        if time.monotonic() > deadline:
            raise CheckpointError("rank %d has not written within %d s" % (rank, PATIENCE_SECONDS))
        time.sleep(_POLL_SECONDS)
    with open(_report_path(folder, rank), encoding="utf-8") as file:
        told = json.load(file)
    if told["mistake"]:
        raise CheckpointError("rank %d: %s" % (rank, told["mistake"]))
    return {name: WrittenFile(*one) for name, one in told["files"].items()}


def _report_path(folder: str, rank: int) -> str:
    return os.path.join(folder, "rank-%d.written" % rank)
