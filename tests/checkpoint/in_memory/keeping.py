"""What ranks do in the tests of states in memory: keep some, lose nodes, and find the newest again."""

import os
import shutil
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from tests.checkpoint import training

from echelon.checkpoint import shards
from echelon.checkpoint.in_memory import recall
from echelon.checkpoint.in_memory.memory_saver import MemorySaver
from echelon.checkpoint.saver import SavedState
from echelon.checkpoint.store import CheckpointStore

TIMEOUT = timedelta(seconds=5)


def new_group(ranks: list[int] | None = None) -> Any:
    return dist.new_group(ranks, backend="gloo", timeout=TIMEOUT)


def folder_of(root: str, nodes: Sequence[str]) -> str:
    """Return the folder of this rank's node; `nodes` has a name for each rank."""
    return os.path.join(root, nodes[dist.get_rank()])


def saver(root: str, nodes: Sequence[str], said: list[str], **settings: Any) -> MemorySaver:
    folder = folder_of(root, nodes)
    return MemorySaver(folder, dist.get_rank(), dist.get_world_size(), new_group, said.append, **settings)


def state(kind: str, step: int) -> SavedState:
    """Return a model's weights after a step, and a tensor that each rank has of its own."""
    named = training.named(training.make(kind, step))
    named[f"own/rank-{dist.get_rank()}"] = torch.full((3,), float(dist.get_rank() * 1000 + step))
    return SavedState(named, {"journal.bin": b"step %d" % step} if dist.get_rank() == 0 else {}, {"kind": "test"})


def keep(root: str, nodes: Sequence[str], kind: str, last: int) -> dict[str, Any]:
    """Keep the states of the steps up to `last`; return what this node holds, and what was said."""
    said: list[str] = []
    saving = saver(root, nodes, said)
    for step in range(1, last + 1):
        saving._next_step = step  # each step is kept
        saving.keep(step, lambda step=step: state(kind, step))  # type: ignore[misc]
        saving.wait(60)
        dist.barrier()
    here = folder_of(root, nodes)
    newest = os.path.join(here, f"step-{last:09d}")
    return {"said": said, "files": sorted(os.listdir(newest)), "folder": sorted(os.listdir(here))}


def find(
    root: str, nodes: Sequence[str], kind: str, step_on_disk: int, attempt: int = 1, num_ranks: int = 0
) -> dict[str, Any]:
    """Look for the newest state, load it, and compare it."""
    said: list[str] = []
    here = folder_of(root, nodes)
    found = recall.newest(here, step_on_disk, attempt, new_group, said.append, num_ranks)
    left = sorted(os.listdir(here)) if os.path.isdir(here) else []
    if found is None:
        return {"step": -1, "said": said, "left": left}
    whole, findings = CheckpointStore(here).latest(deep=True)
    expected = {name: training.whole(one) for name, one in state(kind, found.step).tensors.items()}
    got = {name: torch.zeros_like(one) for name, one in state(kind, 0).tensors.items()}
    reader = shards.ShardReader(found.path)
    reader.read_metadata()
    got = {name: one for name, one in got.items() if name in reader.saved}
    shards.load(got, found.path)
    is_same = all(torch.equal(training.whole(one), expected[name]) for name, one in got.items())
    with open(os.path.join(found.path, "journal.bin"), "rb") as file:
        journal = file.read().decode()
    return {
        "step": found.step, "said": said, "left": left, "is_same": is_same, "journal": journal, "findings": findings,
        "is_whole": whole == found, "num": len(got),
    }  # fmt: skip


def lose(root: str, *nodes: str) -> None:
    """Lose nodes, with all that their memory had."""
    for node in nodes:
        shutil.rmtree(os.path.join(root, node))


def refuse(root: str, nodes: Sequence[str], what: str) -> dict[str, Any]:
    """Keep states while a rank cannot; return which saves were published on this node, and what was said."""
    said: list[str] = []
    settings: dict[str, Any] = {"available_bytes": lambda: 100} if what == "memory" and dist.get_rank() == 1 else {}
    saving = saver(root, nodes, said, **settings)
    for step in (1, 2, 3):
        saving._next_step = step
        if what == "folder" and step == 2 and dist.get_rank() == 1:
            here = folder_of(root, nodes)
            os.rename(here, here + "-gone")
            with open(here, "w", encoding="utf-8"):
                pass  # a file in place of the folder
        saving.keep(step, lambda step=step: state("plain", step))  # type: ignore[misc]
        saving.wait(90)
        dist.barrier()
    return {"said": said, "is_on": saving._is_on}
