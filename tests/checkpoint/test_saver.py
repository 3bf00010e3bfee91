"""Saves in the background: what is saved is the state of the step, and no failure reaches the training."""

import errno
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint import training
from tests.train.strategies import ranks

from echelon.checkpoint import host_memory, shards
from echelon.checkpoint.saver import Saver
from echelon.checkpoint.store import Checkpoint, CheckpointStore
from echelon.environment import memory_left


def make(folder: Path, **settings: Any) -> tuple[Saver, list[str]]:
    said: list[str] = []
    return Saver(str(folder), 0, 1, say=said.append, **settings), said


def values(checkpoint: Checkpoint, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    loaded = {name: torch.zeros_like(one) for name, one in like.items()}
    shards.load(loaded, checkpoint.path)
    return loaded


def test_state_of_the_step_is_saved(tmp_path: Path) -> None:
    """The training may change all tensors as soon as `save` returns; documents, about and versions are there."""
    saver, said = make(tmp_path)
    tensors = {"model-0/a": torch.arange(100_000.0), "model-0/b": torch.tensor(True), "x": torch.ones(3).bfloat16()}
    for step in (1, 2, 3, 4):
        tensors["model-0/a"].fill_(step)
        assert saver.save(step, tensors, {"journal.json": b"[1]"}, {"loss": step})
        tensors["model-0/a"].fill_(-1)
        assert saver.wait(60)
    found, findings = CheckpointStore(str(tmp_path)).latest(deep=True)
    assert found is not None
    assert (found, findings, said) == (saver.published, [], [])
    assert torch.equal(values(found, tensors)["model-0/a"], torch.full((100_000,), 4.0))
    assert (Path(found.path) / "journal.json").read_bytes() == b"[1]"
    assert (found.manifest.about, found.manifest.versions["torch"]) == ({"loss": 4}, torch.__version__)
    assert [entry.step for entry in CheckpointStore(str(tmp_path)).entries()] == [2, 3, 4]
    assert min(saver.durations.stopped_seconds, saver.durations.written_seconds) > 0


def test_shapes_may_change_between_saves(tmp_path: Path) -> None:
    """Plans and copies follow the tensors: more, larger, fewer, none."""
    saver, _ = make(tmp_path)
    for step, tensors in enumerate(({"a": torch.ones(2)}, {"a": torch.ones(500, 70), "b": torch.ones(1)}, {}), 1):
        assert saver.save(step, tensors, {}, {})
        saver.wait()
        found = saver.published
        assert found is not None
        assert found.step == step
        assert all(torch.equal(one, tensors[name]) for name, one in values(found, tensors).items())


def test_copies_over_several_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor may be larger than a block, and end in the middle of one."""
    monkeypatch.setattr(host_memory, "BLOCK_BYTES", 64)
    saver, _ = make(tmp_path)
    tensors = {"a": torch.arange(33.0), "b": torch.arange(3).to(torch.int8), "c": torch.arange(40.0).reshape(5, 8).t()}
    assert saver.save(1, tensors, {}, {})
    saver.wait()
    assert saver.published is not None
    assert all(torch.equal(one, tensors[name]) for name, one in values(saver.published, tensors).items())


def test_too_little_memory(tmp_path: Path) -> None:
    """Where the copies would not fit, the training waits while its tensors themselves are written, with a line."""
    saver, said = make(tmp_path, available_bytes=lambda: 1000)
    tensors = {"a": torch.arange(1000.0)}
    assert saver.save(1, tensors, {}, {})
    tensors["a"].zero_()
    saver.wait()
    assert said == [
        "the checkpoint of step 1 needs 0.0 GiB of host memory for copies, and 0.0 GiB are available: "
        "it is written in parts, and the training waits"
    ]
    assert saver.published is not None
    assert torch.equal(values(saver.published, tensors)["a"], torch.arange(1000.0))


def test_available_memory(tmp_path: Path) -> None:
    """The smallest limit counts: the machine's, or that of a cgroup above, without what the kernel can drop."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text("0::/job/step\n")
    groups = tmp_path / "sys" / "fs" / "cgroup"
    (groups / "job" / "step").mkdir(parents=True)
    assert memory_left.available_bytes(str(tmp_path)) == 5000 << 10
    (groups / "job" / "step" / "memory.max").write_text("max\n")
    (groups / "job" / "step" / "memory.current").write_text("100\n")
    (groups / "job" / "memory.max").write_text("3000\n")
    (groups / "job" / "memory.current").write_text("2000\n")
    (groups / "job" / "memory.stat").write_text("anon 1500\ninactive_file 400\n")
    assert memory_left.available_bytes(str(tmp_path)) == 1400
    assert memory_left.available_bytes() > 1 << 20


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line names the cause, the earlier checkpoint stays, and the next save is tried again."""
    saver, said = make(tmp_path)
    tensors = {"a": torch.ones(1000)}
    saver.save(1, tensors, {}, {})
    saver.wait()
    with monkeypatch.context() as patched:
        real = os.fsync
        patched.setattr(os, "fsync", lambda number: (_ for _ in ()).throw(OSError(errno.EDQUOT, "quota")))
        assert saver.save(2, tensors, {}, {})
        saver.wait()
    assert os.fsync is real
    assert len(said) == 1
    assert said[0].startswith("the checkpoint of step 2 was not written: cannot write ")
    assert said[0].endswith(": the disk quota is used up")
    assert os.listdir(tmp_path) == ["step-000000001"]
    assert saver.save(3, tensors, {}, {})
    saver.wait()
    assert sorted(os.listdir(tmp_path)) == ["step-000000001", "step-000000003"]


def test_what_cannot_be_saved_is_a_line(tmp_path: Path) -> None:
    """Bad tensors, documents, about and folders never raise."""
    saver, said = make(tmp_path / "folder")
    good = {"a": torch.ones(1)}
    assert not saver.save(1, {"a": torch.ones(2).to_sparse()}, {}, {})
    assert not saver.save(2, good, {"../x": b""}, {})
    assert not saver.save(3, good, {"manifest.json": b""}, {})
    assert saver.save(4, good, {}, {"about": object()})
    saver.wait()
    (tmp_path / "file").write_text("")
    in_file, said_of_file = make(tmp_path / "file")
    assert not in_file.save(5, good, {}, {})
    assert [line.partition(":")[0] for line in (*said, *said_of_file)] == [
        "the checkpoint of step 1 is skipped", "the checkpoint of step 2 is skipped",
        "the checkpoint of step 3 is skipped", "the checkpoint of step 4 was not written",
        "the checkpoint of step 5 is skipped",
    ]  # fmt: skip
    assert os.listdir(tmp_path / "folder") == []


def test_save_during_a_save_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first goes on; a line says that the second was skipped."""
    saver, said = make(tmp_path)
    gate = threading.Event()
    finish = saver._finish
    monkeypatch.setattr(saver, "_finish", lambda *arguments: (gate.wait(60), finish(*arguments)))
    assert saver.save(1, {"a": torch.ones(1)}, {}, {})
    assert saver.is_writing
    assert not saver.wait(0.01)
    assert not saver.save(2, {"a": torch.ones(1)}, {}, {})
    gate.set()
    assert saver.wait(60)
    assert said == ["the checkpoint of step 2 is skipped: that of step 1 is still being written"]
    assert os.listdir(tmp_path) == ["step-000000001"]


@pytest.mark.parametrize(("num_ranks", "kind"), [(2, "plain"), (4, "fsdp")])
def test_ranks_save_together(num_ranks: int, kind: str, tmp_path: Path) -> None:
    """Rank 0 publishes what all have written; another number of ranks reads it."""
    told = ranks.run(num_ranks, training.saver_session, kind, str(tmp_path / "c"), 3)
    assert all(one["said"] == [] for one in told)
    found, findings = CheckpointStore(str(tmp_path / "c")).latest(deep=True)
    assert found is not None
    assert (found, findings) == (told[0]["published"], [])
    assert (found.step, found.manifest.num_ranks, found.manifest.about) == (3, num_ranks, {"step": 3})
    assert sorted(os.listdir(tmp_path / "c")) == ["step-000000002", "step-000000003"]
    assert ranks.run(2, training.load_after, "fsdp", found.path, 2) == [True, True]


def test_all_ranks_skip_together(tmp_path: Path) -> None:
    """One rank that still writes is enough; the save after that one begins."""
    told = ranks.run(2, training.save_while_one_rank_writes, str(tmp_path / "c"))
    assert [one["begun"] for one in told] == [[True, False, True]] * 2
    assert told[0]["said"] == ["the checkpoint of step 2 is skipped: that of step 1 is still being written"]
    assert told[1]["said"] == []
    assert told[0]["names"] == ["step-000000001", "step-000000003"]


def test_disk_of_one_rank_is_full(tmp_path: Path) -> None:
    """Rank 0 says which rank could not write; the others go on."""
    told = ranks.run(2, training.disk_of_one_rank_is_full, str(tmp_path / "c"))
    assert told[1]["said"] == []
    assert len(told[0]["said"]) == 1
    assert told[0]["said"][0].startswith("the checkpoint of step 2 was not written: rank 1: cannot write ")
    assert told[0]["names"] == ["step-000000001", "step-000000003"]


def test_bad_tensor_of_one_rank(tmp_path: Path) -> None:
    """All ranks skip; the next save works."""
    told = ranks.run(2, training.unlike_tensors, str(tmp_path / "c"))
    assert [one["begun"] for one in told] == [[False, True]] * 2
    assert told[0]["said"][0].startswith("the checkpoint of step 1 is skipped: rank 1: a has the layout")
    assert told[0]["names"] == ["step-000000002"]
