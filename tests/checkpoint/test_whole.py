"""Of checkpoints with altered files the newest whole one is used, on all ranks, and the damage is told."""

import random
import shutil
import threading
from pathlib import Path

import pytest
from tests.tiers import pick

from echelon.checkpoint.store import CheckpointStore
from echelon.train.checkpoints import newest
from echelon.train.scaling_error import ScalingError

NUM_RANKS, NUM_DAMAGES = 3, pick(40, all=200)
STEPS = (10, 20, 30)
NAMES = ("facts.bin", "journal.bin", "rank-0.safetensors", "rank-1.safetensors", "tensors.json")


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Return a folder with three checkpoints, whose files differ."""
    made = CheckpointStore(str(tmp_path / "checkpoints"), keep=5)
    chance = random.Random(0)
    for step in STEPS:
        draft = made.begin(step)
        files = {name: draft.write(name, chance.randbytes(chance.randint(1, 400))) for name in NAMES}
        draft.publish(files, num_ranks=2, about={}, versions={})
    return made


def damage(folder: Path, chance: random.Random, other: Path) -> None:
    """Do to one file what disks, copies and people do."""
    path = folder / chance.choice([*NAMES, "manifest.json"])
    content = bytearray(path.read_bytes())
    how = chance.choice(("bit", "cut", "longer", "zeros", "gone", "other step", "folder"))
    if how == "bit":
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    elif how == "cut":
        del content[chance.randrange(len(content)) :]
    elif how == "longer":
        content += bytes([7])
    elif how == "zeros":
        content[:] = bytes(len(content) + (not any(content)))
    elif how == "other step":
        content[:] = (other / path.name).read_bytes()
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how != "gone":
        path.write_bytes(content)


def found(store: CheckpointStore) -> list[newest.OnDisk]:
    """Return what each of several ranks finds; they ask each other as ranks do."""
    answers: dict[str, list[bool]] = {}
    meeting = threading.Barrier(NUM_RANKS)
    results: dict[int, newest.OnDisk] = {}

    def any_rank(question: str, *, is_so: bool) -> bool:
        answers.setdefault(question, []).append(is_so)
        meeting.wait(10)
        return any(answers[question])

    def work(rank: int) -> None:
        results[rank] = newest.newest_on_disk(store, rank, NUM_RANKS, any_rank)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(NUM_RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[rank] for rank in range(NUM_RANKS)]


def test_damaged_checkpoints_are_never_used(store: CheckpointStore, tmp_path: Path) -> None:
    """Whatever is altered in the two newest, the oldest is used by all ranks; each damage is a sentence."""
    chance = random.Random(1)
    kept = tmp_path / "kept"
    shutil.copytree(store.folder, kept)
    for _ in range(NUM_DAMAGES):
        shutil.rmtree(store.folder)
        shutil.copytree(kept, store.folder)
        for step in STEPS[1:]:
            damage(Path(store.path(step)), chance, kept / "step-000000010")
        for one in found(store):
            assert one.newest is not None
            assert one.newest.step == STEPS[0]
            assert len(one.findings) == one.num_damaged == 2
            assert all(" is not used: " in finding for finding in one.findings)


def test_manifest_of_another_step(store: CheckpointStore) -> None:
    """The oldest one's in the newest folder does not make this folder old: what is wrong with it is said."""
    (Path(store.path(STEPS[2])) / "manifest.json").write_bytes(
        (Path(store.path(STEPS[0])) / "manifest.json").read_bytes()
    )
    for one in found(store):
        assert one.newest is not None
        assert one.newest.step == STEPS[1]
        assert len(one.findings) == 1


def test_no_checkpoint_is_whole(store: CheckpointStore) -> None:
    """Where all are damaged the run ends, and does not begin anew."""
    for step in STEPS:
        damage(Path(store.path(step)), random.Random(step), Path(store.path(STEPS[0])))
    for one in found(store):
        assert one.newest is None
        with pytest.raises(ScalingError, match="none of the 3 checkpoints in "):
            one.refuse_none()


def test_empty_folder_is_a_beginning(tmp_path: Path) -> None:
    one = newest.newest_on_disk(CheckpointStore(str(tmp_path)), 0, 1, lambda _, *, is_so: is_so)
    assert one == newest.OnDisk(None, [], str(tmp_path), 0)
    one.refuse_none()
