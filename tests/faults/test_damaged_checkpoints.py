"""One file of the newest checkpoint is damaged: the one before it is used, a line says so, and the losses are equal."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.checkpoint.test_whole import damage
from tests.tiers import pick
from tests.train.replay.test_resume import Folder

from echelon.orders.rehearsal import KILL_RANK

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(9)
x = torch.randn(192, 64)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
step = 0
for epoch in range(3):
    for (a,) in DataLoader(TensorDataset(x), batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = (model(a) - a[:, :1]).pow(2).mean()
        loss.backward()
        optimizer.step()
        step += 1
    print("epoch", epoch, f"{loss.item():.9e}", flush=True)
torch.save(model.state_dict(), "model.pt")
"""
FILES = ("rank-0.safetensors", "rank-1.safetensors", "journal.bin", "facts.bin", "tensors.json", "manifest.json")
NUM_DAMAGES = pick(4, soak=200)
"""Beside one altered byte of each file: damages of random kinds to random files."""

pytestmark = [pytest.mark.tier("all"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """Return a folder with the run "one", which was killed behind its third checkpoint."""
    path = tmp_path_factory.mktemp("damaged")
    (path / "train.py").write_text(SCRIPT)
    folder = Folder(path / "run", path / "train.py")
    options = ("--checkpoint-every", "6steps", "--keep-checkpoints", "9", "--max-restarts", "0", "--run-dir", "one")
    assert folder.run(2, *options, kind=KILL_RANK, rank=0, step=30).returncode == 137
    yield folder


@pytest.fixture(scope="module")
def wanted(killed: Folder) -> str:
    """Return the last line of a run that nobody disturbs."""
    done = killed.run(2)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def assert_older_is_used(folder: Folder, damaged: Path, wanted: str) -> None:
    """Assert that a run continues from the checkpoint before the damaged one, and ends as it would have."""
    older = sorted(one.name for one in damaged.parent.iterdir() if one.name.startswith("step-"))[-2]
    done = folder.run(2, "--checkpoint-every", "6steps", "--resume", damaged.parent.parent.name)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is not used: ") == 1, done.stderr
    assert f"note: {damaged.name} is not used: " in done.stderr
    assert f"continues after step {int(older[5:])}, from a checkpoint" in done.stderr
    assert done.stdout.splitlines()[-1] == wanted


def copied(folder: Folder, name: str) -> Path:
    """Return the newest checkpoint of a copy of the run."""
    shutil.rmtree(folder.path / name, ignore_errors=True)
    shutil.copytree(folder.path / "one", folder.path / name)
    return max((folder.path / name / "checkpoints").glob("step-*"))


def contents(folder: Path) -> "dict[str, bytes | None]":
    """Return the content of each file."""
    return {path.name: path.read_bytes() if path.is_file() else None for path in folder.iterdir()}


@pytest.mark.parametrize("name", FILES)
def test_one_bit(killed: Folder, wanted: str, name: str) -> None:
    """Its size stays, and neither the script nor its arguments are blamed."""
    newest = copied(killed, "bit")
    content = bytearray((newest / name).read_bytes())
    content[len(content) // 2] ^= 0x40
    (newest / name).write_bytes(content)
    assert_older_is_used(killed, newest, wanted)


@pytest.mark.parametrize("seed", range(NUM_DAMAGES))
def test_any_damage(killed: Folder, wanted: str, seed: int) -> None:
    """Bits, lengths, missing files, those of another step, and folders in their place."""
    newest = copied(killed, "any")
    chance, other = random.Random(seed), min(newest.parent.glob("step-*"))
    while contents(newest) == contents(killed.path / "one/checkpoints" / newest.name):  # some files are as in any step
        damage(newest, chance, other)
    assert_older_is_used(killed, newest, wanted)


def test_torn_log_of_written_paths(killed: Folder, wanted: str) -> None:
    """It is no part of a checkpoint: the newest one is used."""
    newest = copied(killed, "torn")
    (newest.parent / "written.jsonl").write_bytes(b'{"path": "model.pt", "was_th\n\xff\xfe[3]\n{"pa')
    done = killed.run(2, "--checkpoint-every", "6steps", "--resume", "torn")
    assert done.returncode == 0, done.stderr
    assert f"continues after step {int(newest.name[5:])}, from a checkpoint" in done.stderr
    assert done.stdout.splitlines()[-1] == wanted
