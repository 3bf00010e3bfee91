"""A run that continues with other arguments, or a changed script, says so, and what that means."""

from pathlib import Path

import pytest

from echelon.orders.rehearsal import KILL_RANK

from .test_resume import Folder

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import beside

torch.manual_seed(3)
x = torch.randn(256, 8)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[2]))
step = 0
for epoch in range(2):
    for (a,) in DataLoader(TensorDataset(x), batch_size=int(sys.argv[1]), shuffle=True):
        optimizer.zero_grad()
        loss = (model(a) - beside.target(a)).pow(2).mean()
        loss.backward()
        optimizer.step()
        step += 1
    print("epoch", epoch, "step", step, f"{loss.item():.6f}", "lr", optimizer.param_groups[0]["lr"], flush=True)
"""
EDITS_ITSELF = """
import os, pathlib, signal, time
import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (a,) in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(16, 2)), batch_size=4):
    optimizer.zero_grad()
    model(a).sum().backward()
    optimizer.step()
while os.environ["ECHELON_ATTEMPT"] == "0":
    time.sleep(0.05)
    if pathlib.Path("one/checkpoints/step-000000002").exists():
        with open(__file__, "a") as file:
            file.write("# edited")
        os.kill(os.getpid(), signal.SIGKILL)
"""
BESIDE = "def target(a):\n    return a.prod(1, keepdim=True)\n"
DECIDED = (
    "the checkpoint decides about weights, the settings of optimizers such as the learning rate, random numbers, and"
)

pytestmark = pytest.mark.tier("all")


def killed(path: Path) -> Folder:
    """Return a folder in which a run was killed after its tenth step."""
    (path / "script").mkdir()
    (path / "script/train.py").write_text(SCRIPT)
    (path / "script/beside.py").write_text(BESIDE)
    folder = Folder(path / "run", path / "script/train.py", "16", "0.1")
    options = ("--checkpoint-every", "4steps", "--max-restarts", "0", "--run-dir", "one")
    assert folder.run(2, *options, kind=KILL_RANK, rank=0, step=14).returncode == 137
    return folder


def test_other_learning_rate(tmp_path: Path) -> None:
    folder = killed(tmp_path)
    folder.words[1:] = ["16", "0.0001"]
    done = folder.run(2, "--checkpoint-every", "4steps", "--resume", "one")
    assert done.returncode == 0, done.stderr
    assert f"the arguments of the script were 16 0.1 at the checkpoint, and are 16 0.0001 now; {DECIDED}" in done.stderr
    assert "SGD goes on with lr 0.1, as in the checkpoint, and not with 0.0001" in done.stderr
    assert done.stdout.splitlines()[-1].endswith("lr 0.1")


def test_other_batch_size(tmp_path: Path) -> None:
    folder = killed(tmp_path)
    folder.words[1:] = ["8", "0.1"]
    done = folder.run(2, "--checkpoint-every", "4steps", "--resume", "one")
    assert done.returncode == 2, done.stderr
    assert "batches of 16 samples, and this DataLoader has batches of 8 samples" in done.stderr
    assert "the position in the data has lost its meaning" in done.stderr
    assert "Traceback" not in done.stderr


def test_edited_script(tmp_path: Path) -> None:
    """Also a module beside it: a note names the file, and the training goes on as the script is now, or ends."""
    folder = killed(tmp_path)
    (tmp_path / "script/beside.py").write_text(BESIDE.replace("prod", "sum"))
    done = folder.run(2, "--checkpoint-every", "4steps", "--resume", "one")
    assert done.returncode == 0, done.stderr
    assert "beside.py was edited since the run that is continued; what its checkpoint holds" in done.stderr
    (tmp_path / "script/train.py").write_text(SCRIPT.replace("nn.Linear(8, 1)", "nn.Linear(8, 1, bias=False)"))
    done = folder.run(2, "--checkpoint-every", "4steps", "--resume", "one")
    assert done.returncode == 2, done.stderr
    assert "train.py was edited since" in done.stderr
    assert "the checkpoint has model-0/bias" in done.stderr
    assert "Traceback" not in done.stderr


def test_script_is_edited_while_it_runs(tmp_path: Path) -> None:
    """The ranks that start again run what is written then, and say so."""
    (tmp_path / "train.py").write_text(EDITS_ITSELF)
    done = Folder(tmp_path / "run", tmp_path / "train.py").run(2, "--checkpoint-every", "2steps", "--run-dir", "one")
    assert done.returncode == 0, done.stderr
    assert "note: edited while the run went on: train.py; the steps before the checkpoint are repeated" in done.stderr
    assert "continues after step" in done.stderr
