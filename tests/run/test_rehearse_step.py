"""`echelon rehearse --step RUN:STEP` runs one step of a run again, and names what in it is not finite first."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests import warm
from tests.runs import ECHELON, left_behind
from tests.tiers import some

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x, y = torch.randn(64, 6), torch.randn(64, 4)
x[37] = 0.0


class Unit(nn.Module):
    def forward(self, rows):
        return rows / rows.norm(dim=1, keepdim=True)


data = TensorDataset(x, y)
model = nn.Sequential(Unit(), nn.Linear(6, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for rows, targets in DataLoader(data, batch_size=8):
        loss = nn.functional.mse_loss(model(rows), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6g}")
"""
OWN = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(6, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(1, 5):
    output = model(torch.ones(4, 6))
    if step == 3 and dist.get_rank() == 1:
        output = output + (output - output.detach()).abs().sum().sqrt()
    optimizer.zero_grad()
    output.pow(2).mean().backward()
    optimizer.step()
"""


def echelon(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return warm.run(["-m", "echelon", *words], cwd=folder, environ=environ)


def itself(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Do without the forks of the tests: a checkpoint names variables by the number of frames around the script."""
    return subprocess.run([*ECHELON, *words], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("saves", [True, False])
def test_step_of_a_scaled_run(tmp_path: Path, saves: bool) -> None:
    """The script seeds nothing: the step has the samples and random numbers of the run, from a checkpoint too.

    Where a target is bad, no module of the script is, and none of ours is named.
    """
    (tmp_path / "train.py").write_text(SCRIPT if saves else SCRIPT.replace("x[37] = 0.0", "y[37] = torch.nan"))
    options = ["--checkpoint-every", "3steps", "--keep-checkpoints", "9"] if saves else []
    call = itself if saves else echelon
    first = call(tmp_path, "run", "-n", "2", *options, "--run-dir", "first", "train.py")
    assert "look into it: echelon rehearse --step first:5" in first.stderr
    before = sorted(path.name for path in tmp_path.rglob("*"))
    done = call(tmp_path, "rehearse", "--step", "first:5")
    assert done.returncode == 0, done.stderr
    healthy, bad = done.stdout.splitlines()
    assert healthy.startswith("rank 0: loss ")
    assert "; all outputs" in healthy
    of_module = "the first output that is not finite is that of Sequential.0 (Unit), float32 4×6: 6 nan of 24 values"
    of_script = "all outputs of modules are finite, so the script's computation of the loss from them is not"
    assert bad.startswith(f"rank 1: loss nan; {of_module if saves else of_script}")
    assert "; its batch: samples 36, 37, 38, 39" in bad
    place = "continued after step 3" if saves else "from the begin of the script"
    assert f"step 5 of first, {place}, on 2 ranks" in done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert left_behind(str(tmp_path)) == []

    losses = first.stdout.splitlines()
    told = json.loads(call(tmp_path, "rehearse", "--json", "--step", "first:4").stdout)
    mean = sum(float(loss) for rank in told["ranks"] for loss in rank["losses"]) / 2
    assert mean == pytest.approx(float(losses[3]), rel=1e-3)  # both are printed with four digits


def test_gradient_of_a_script_that_distributes_itself(tmp_path: Path) -> None:
    """Losses and outputs are finite on both ranks; the gradient of rank 1 is not, before the ranks exchange it."""
    (tmp_path / "train.py").write_text(OWN)
    first = echelon(tmp_path, "run", "-n", "2", "--run-dir", "first", "train.py")
    assert "step 3: the weights are not finite after it" in first.stderr
    done = echelon(tmp_path, "rehearse", "--step", "first:3")
    healthy, bad = done.stdout.splitlines()
    assert healthy.endswith("; all outputs and gradients are finite")
    assert bad.endswith("; all outputs are finite, and the first gradient that is not is that of Linear.bias")


def test_step_that_is_finite_now(tmp_path: Path) -> None:
    """A script that reads something else in each run is told so, with exit code 1."""
    (tmp_path / "train.py").write_text(OWN.replace("step == 3", "step == 3 and sys.argv[1:] and os.environ['BAD']"))
    text = (tmp_path / "train.py").read_text().replace("import torch\n", "import os, sys, time\nimport torch\n", 1)
    (tmp_path / "train.py").write_text(text)
    echelon(tmp_path, "run", "-n", "2", "--run-dir", "first", "--env", "BAD=1", "train.py", "x")
    events = (tmp_path / "first" / "plan.json").read_text().replace('"1"\n', '""\n')
    (tmp_path / "first" / "plan.json").write_text(events)
    done = echelon(tmp_path, "rehearse", "--step", "first:3")
    assert done.returncode == 1, done.stdout
    assert "the step was not finite in the run, and it is now" in done.stderr


def test_wrong_steps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OWN)
    echelon(tmp_path, "run", "-n", "1", "--run-dir", "first", "train.py")
    (tmp_path / "none.py").write_text("print(1)")
    echelon(tmp_path, "run", "-n", "1", "--run-dir", "none", "none.py")
    echelon(tmp_path, "run", "-n", "1", "--run-dir", "program", "--", sys.executable, "train.py")
    (tmp_path / "elsewhere").mkdir()
    cases = {
        ("--step", "first"): "give a run and a step of it",
        ("--step", "first:0"): "give a run and a step of it",
        ("--step", "first:9"): "first has made 4 steps, so there is no step 9",
        ("--step", "last:9"): "there is no run last",
        ("--step", "none:1"): "none has made no step of an optimizer",
        ("--step", "program:1"): "the steps of program cannot be run again: its program is no Python script",
        ("--step", "first:1", "train.py"): "--step runs a step as its run did, and train.py would change it",
        ("--step", "first:1", "--seed", "1"): "--step runs a step as its run did, and --seed would change it",
        ("--step", "first:1", "--debug"): "--debug needs a terminal",
        ("--debug", "train.py"): "--debug is for one step of a run",
    }
    for words, message in cases.items():
        done = echelon(tmp_path, "rehearse", *words)
        assert (done.returncode, message in done.stderr, "hint:" in done.stderr) == (2, True, True), done.stderr
    done = echelon(tmp_path / "elsewhere", "rehearse", "--step", "../first:1")
    assert "the script of ../first is train.py in" in done.stderr or "the script of" in done.stderr
    assert done.returncode == 2


@pytest.mark.parametrize("place", some(["module", "script"], 1))
def test_debugger(tmp_path: Path, place: str) -> None:
    """The debugger of the bad rank stands where its first output, or its loss, is not finite; the other rank waits."""
    is_module = place == "module"
    (tmp_path / "train.py").write_text(SCRIPT if is_module else SCRIPT.replace("x[37] = 0.0", "y[37] = torch.nan"))
    echelon(tmp_path, "run", "-n", "2", "--run-dir", "first", "train.py")
    leader, follower = pty.openpty()
    words = [sys.executable, "-m", "echelon", "rehearse", "--debug", "--step", "first:5"]
    process = subprocess.Popen(words, cwd=tmp_path, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    said, answers = "", ["p 'class', type(module).__name__\n", "p 'shape', tuple(output.shape)\n", "q\n"]
    if not is_module:
        answers = ["w\n", "p 'losses', len(losses)\n", "q\n"]
    while True:
        try:
            said += os.read(leader, 4096).decode()
        except OSError:
            break
        if said.count("(Pdb)") > 3 - len(answers) and answers:
            os.write(leader, answers.pop(0).encode())
    os.close(leader)
    assert process.wait() == 0, said
    for answer in ("('class', 'Unit')", "('shape', (4, 6))") if is_module else ("-> optimizer.step()", "('losses', 1)"):
        assert answer in said
    assert "rank 1: loss nan; " in said
