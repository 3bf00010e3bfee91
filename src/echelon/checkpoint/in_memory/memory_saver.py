"""Keep the newest state in memory: each rank's share on its own node, and on the next one, which outlives it."""

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...environment import memory_left
from .. import exchange, host_memory, shards, tensors_file
from ..errors import CheckpointError
from ..manifest import WrittenFile
from ..saver import Save, SavedState, Saver, text_of, versions_here, write_copies
from . import transfer

SAVE = "save"  # in the manifest: the name of the save, equal on all nodes
ATTEMPT = "attempt"  # in the manifest: the number of the attempt of the run
PATIENCE_SECONDS = 120.0
SHARE_OF_AVAILABLE = 0.5  # the most that states in memory may take of what is available on a node
_NUM_HELD = 3  # the states that a node holds at the same time: two whole ones, and one that is being written
_POLL_SECONDS = 0.005
_LOOK_SECONDS = 60.0


class MemorySaver(Saver):
    """Keeps states in a folder of each node's memory, as often as it costs little; all ranks call it at the same steps.

    `folder` is that of this rank's node, and no other node's; it is empty where the node has none, and None where no
    node has one. `new_group` makes a group of gloo of all ranks, in which shares travel. If nothing can be kept any
    more, rank 0 says so once, and the training goes on.
    """

    def __init__(
        self,
        folder: str | None,
        rank: int,
        num_ranks: int,
        new_group: Callable[[], Any],
        say: Callable[[str], None],
        *,
        attempt: int = 0,
        available_bytes: Callable[[], int] = memory_left.available_bytes,
    ) -> None:
        super().__init__(folder or os.devnull, rank, num_ranks, keep=2, say=say, available_bytes=available_bytes)
        self._path = folder or ""
        self._attempt = attempt
        self._is_on = folder is not None
        self._next_step = 1
        self._pace = SavePace()
        self._waited_seconds = 0.0
        self._new_group = new_group
        self._transfer_group: Any = None
        self._nodes = NodeMarks([self._path])
        self._fitting: list[int] = []
        self._mistake = ""
        self._read_next = 0.0
        self._bytes = 0

    def keep(self, step: int, state: Callable[[], SavedState]) -> None:
        """Keep the state of this step, if it is time; `state` is asked for it only then."""
        if not self._is_on or step < self._next_step:
            return
        began = time.monotonic()
        self.save(step, *state())
        self._pace.end(step, time.monotonic() - began, self._waited_seconds)

    def _tell_all(
        self, step: int, tensors: Mapping[str, torch.Tensor], documents: Mapping[str, bytes]
    ) -> list[dict[str, Any]]:
        began = time.monotonic()
        told = super()._tell_all(step, tensors, documents)
        self._waited_seconds = time.monotonic() - began
        self._next_step = step + told[0].get("steps", 1)
        nodes = [one.get("node", "") for one in told]
        if not any(nodes):
            self._is_on = False  # as the user wishes
        if not any(one["mistake"] for one in told):
            told[0]["mistake"] = self._meet(nodes)
        return told

    def _words(self, step: int) -> dict[str, Any]:
        return {
            "mistake": self._mistake if self._path else "its node has no folder in memory",
            "node": self._path,
            "available": self._available(),
            "steps": self._pace.begin(step, self.durations.written_seconds),
        }

    def _available(self) -> int:
        """Return the bytes that states may still take on this node; it is read once a minute."""
        if time.monotonic() >= self._read_next:
            self._read_next = time.monotonic() + _LOOK_SECONDS
            self._bytes = bytes_left(self._path, self._available_bytes())
        return self._bytes

    def _meet(self, nodes: list[str]) -> str:
        """Form the group in which shares travel, once; return why it cannot be formed, equally on all ranks."""
        if len(nodes) == 1 or self._transfer_group is not None:
            return ""
        self._nodes, mistake = NodeMarks(nodes), ""
        try:
            self._transfer_group = self._new_group() if self._nodes.are_many else ()
        except RuntimeError as error:
            mistake = text_of(error)
        if self._nodes.are_many:
            mistakes = [one.decode() for one in exchange.gather(mistake.encode())]
            mistake = next((one for one in mistakes if one), "")
        return mistake

    def _why_not(self, share: shards.RankShare, told: list[dict[str, Any]]) -> str:
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
                return "{} has {:.1f} GiB of memory available, and states in it would need {:.1f} GiB".format(
                    told[leader]["host"], available / 2**30, needed / 2**30,
                )  # fmt: skip
        return ""

    def _fits(self, share: shards.RankShare, hosts: list[str]) -> bool:  # noqa: ARG002
        return True

    def _refuse(self, step: int, why: str, draft: str) -> None:
        """Leave out a save that comes too early; after a mistake, keep nothing any more."""
        if self._rank == 0 and draft:
            self._folder.join(draft).discard()
        if self._is_on and not self._is_busy(why):
            self._is_on = False
            if self._rank == 0:
                self._say(f"keeps no states in the memory of nodes from step {step} on: {why}")

    def _finish(self, save: Save, written: WrittenFile | None, mistake: str) -> None:
        """Write this rank's share, and the one that it keeps; the first rank of the node publishes them."""
        if written is not None:
            mistake = mistake or "the share was written in parts"
        try:
            self._close(save, self._write(save, mistake))
        except Exception as error:  # noqa: BLE001  (whatever it is, the next save tells it, and the training goes on)
            self._mistake = text_of(error)
            _report(self._draft_path(save), self._rank, {}, self._mistake)
            if self._rank == self._nodes.leader_of(self._rank):
                shutil.rmtree(self._draft_path(save), ignore_errors=True)
        self.durations = self.durations._replace(written_seconds=time.monotonic() - save.began)

    def _draft_path(self, save: Save) -> str:
        return os.path.join(self._path, save.name)

    def _write(self, save: Save, mistake: str) -> dict[str, WrittenFile]:
        """Return what this rank has written; a rank that cannot write lets no other rank wait for it."""
        files: dict[str, WrittenFile] = {}
        error: Exception | None = CheckpointError(mistake) if mistake else None
        try:
            draft = self._folder.join(save.name)
            if error is None:
                files[save.share.file] = write_copies(draft, save.share, self._copies)
                for name, content in self._documents(save):
                    files[name] = draft.write(name, content)
        except Exception as wrong:  # noqa: BLE001  (it is raised below)
            error, files = wrong, {}
        if self._nodes.are_many:
            keeper, kept = self._nodes.keeper_of(self._rank), self._nodes.kept_by(self._rank)
            files.update(transfer.pass_on(files, self._draft_path(save), keeper, kept, self._transfer_group))
        if error is not None:
            raise error
        return files

    def _documents(self, save: Save) -> list[tuple[str, bytes]]:
        return [*save.documents.items(), (tensors_file.NAME, save.share.document)] if self._rank == 0 else []

    def _close(self, save: Save, files: dict[str, WrittenFile]) -> None:
        folder = self._draft_path(save)
        if self._rank != self._nodes.leader_of(self._rank):
            _report(folder, self._rank, files, "")
            return
        for rank in self._nodes.ranks_beside(self._rank)[1:]:
            files.update(_files_of(folder, rank))
        about = {**save.about, SAVE: save.name, ATTEMPT: self._attempt}
        draft = self._folder.join(save.name)
        self.published = draft.publish(files, num_ranks=self._num_ranks, about=about, versions=versions_here())


def bytes_left(folder: str, in_memory: int) -> int:
    """Return the bytes that files in the memory may still take: its file system may have a limit of its own."""
    try:
        status = os.statvfs(os.path.dirname(folder))
    except OSError:
        return 0
    return min(in_memory, status.f_bavail * status.f_frsize)


def _report(folder: str, rank: int, files: Mapping[str, WrittenFile], mistake: str) -> None:
    """Tell the first rank of the node what this rank has written: a file that appears as a whole."""
    path = _report_path(folder, rank)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)  # a rank that could write nothing says so too
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump({"mistake": mistake, "files": dict(files)}, file)
        os.rename(path + ".part", path)
    except OSError:
        pass  # the first rank has given this save up


def _files_of(folder: str, rank: int) -> dict[str, WrittenFile]:
    """Return what a rank of this node has written, when it says so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not os.path.exists(_report_path(folder, rank)):
        if time.monotonic() > deadline:
            raise CheckpointError(f"rank {rank} has not written within {PATIENCE_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)
    with open(_report_path(folder, rank), encoding="utf-8") as file:
        told = json.load(file)
    if told["mistake"]:
        raise CheckpointError(f"rank {rank}: {told['mistake']}")
    return {name: WrittenFile(*one) for name, one in told["files"].items()}


def _report_path(folder: str, rank: int) -> str:
    return os.path.join(folder, f"rank-{rank}.written")


class NodeMarks:
    """The nodes of a run, each known by a text that only its ranks have.

    >>> nodes = NodeMarks(["a", "a", "b", "b"])
    >>> [nodes.keeper_of(rank) for rank in range(4)], nodes.kept_by(0), nodes.leaders
    ([2, 3, 0, 1], [2], [0, 2])
    """

    def __init__(self, node_of_ranks: Sequence[str]) -> None:
        self._node_of_ranks = list(node_of_ranks)
        self._ranks: dict[str, list[int]] = {}
        for rank, node in enumerate(node_of_ranks):
            self._ranks.setdefault(node, []).append(rank)
        self._names = list(self._ranks)

    @property
    def are_many(self) -> bool:
        return len(self._names) > 1

    @property
    def leaders(self) -> list[int]:
        return [ranks[0] for ranks in self._ranks.values()]

    def ranks_beside(self, rank: int) -> list[int]:
        return self._ranks[self._node_of_ranks[rank]]

    def leader_of(self, rank: int) -> int:
        return self.ranks_beside(rank)[0]

    def keeper_of(self, rank: int) -> int:
        """Return the rank of the next node that keeps a rank's share."""
        place = self.ranks_beside(rank).index(rank)
        number = self._names.index(self._node_of_ranks[rank])
        others = self._ranks[self._names[(number + 1) % len(self._names)]]
        return others[place % len(others)]

    def kept_by(self, rank: int) -> list[int]:
        """Return the ranks whose shares a rank keeps for their node."""
        number = self._names.index(self._node_of_ranks[rank])
        return [other for other in self._ranks[self._names[number - 1]] if self.keeper_of(other) == rank]


SHARE = 0.02  # the most that saves may take of the time of the training
SHARE_IN_WRITING = 0.2  # the most of the time in which a save is written beside the training
_GROWTH = 4
MOST_STEPS = 1000  # the most steps between two saves: steps may become slower


class SavePace:
    """The steps between two saves, from what the save before took.

    >>> pace = SavePace()
    >>> pace.begin(1)
    1
    """

    def __init__(self) -> None:
        self._step = 0
        self._ended = time.monotonic()
        self._num_steps = 1
        self._least_wait = float("inf")
        self._cost = 0.0

    def begin(self, step: int, written_seconds: float = 0.0) -> int:
        """Return how many steps after this one the next save is due; `written_seconds` is of the save before."""
        seconds_per_step = max((time.monotonic() - self._ended) / max(step - self._step, 1), 1e-6)
        wanted = max(self._cost / SHARE, written_seconds / SHARE_IN_WRITING) / seconds_per_step
        self._num_steps = int(min(max(1.0, wanted + 0.5), self._num_steps * _GROWTH, MOST_STEPS))
        return self._num_steps

    def end(self, step: int, stopped_seconds: float, waited_seconds: float) -> None:
        """Note what a save took; of `waited_seconds`, ranks have waited for slower ones, as they do without a save."""
        self._least_wait = min(self._least_wait, waited_seconds)
        self._cost = stopped_seconds - waited_seconds + self._least_wait
        self._step, self._ended = step, time.monotonic()
