"""`echelon prove` says equal where it is equal, and WRONG with the factor where it is not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(203, 10)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for epoch in range(3):
    for inputs, targets in loader:
        loss = LOSS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
MEAN = "nn.functional.mse_loss(model(inputs), targets)"
SUM = 'nn.functional.mse_loss(model(inputs), targets, reduction="sum")'


def prove(folder: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-m", "echelon", "prove", *options, "train.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)


def test_same_training(tmp_path: Path) -> None:
    """Three ranks train as one does, within the rounding of the script, over thirty steps; nothing is left behind."""
    done = prove(tmp_path, TRAIN.replace("LOSS", MEAN), "-n", "3", "--steps", "30", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["verdict"] == "equal within rounding"
    assert len(result["steps"]) == 30
    assert max(row["difference"] for row in result["tensors"]) < 1e-3
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_summed_loss_is_wrong_by_the_number_of_ranks(tmp_path: Path) -> None:
    """A loss that is summed gives half the gradient on two ranks: the step, the factor and its meaning are named."""
    done = prove(tmp_path, TRAIN.replace("LOSS", SUM), "-n", "2", "--steps", "5")
    assert done.returncode == 1, done.stderr
    assert "WRONG from step 1 on: gradient of parameter 0 is 0.5 times as large" in done.stdout
    assert "that is 1/2, one over the number of ranks: the loss is a sum over the batch" in done.stdout


def test_script_without_a_seed_is_compared_all_the_same(tmp_path: Path) -> None:
    """All three runs begin with the same random numbers, whether the script seeds them or not."""
    script = TRAIN.replace("LOSS", MEAN).replace("torch.manual_seed(0)\n", "")
    done = prove(tmp_path, script, "-n", "2", "--steps", "5", "--json")
    assert done.returncode == 0, done.stderr
    assert max(row["loss"]["bound"] for row in json.loads(done.stdout)["steps"]) < 1e-3


def test_script_that_never_does_the_same_twice(tmp_path: Path) -> None:
    """Where one device does not agree with itself, nothing is proved, and that is said."""
    script = TRAIN.replace("LOSS", MEAN).replace("torch.manual_seed(0)", "torch.seed()")
    done = prove(tmp_path, script, "-n", "2", "--steps", "5")
    assert done.returncode == 1
    assert "cannot be compared: two runs on one rank differ by" in done.stderr


def test_failing_script_is_not_compared(tmp_path: Path) -> None:
    """A script that fails on one rank is shown as it fails."""
    done = prove(tmp_path, "raise ValueError('no data')\n", "-n", "2")
    assert done.returncode == 1
    assert "the script fails on 1 rank" in done.stderr
    assert "ValueError: no data" in done.stderr


def test_script_that_does_not_train(tmp_path: Path) -> None:
    """Without an optimizer step there is nothing to compare, and that is said."""
    done = prove(tmp_path, "import torch\n", "-n", "2")
    assert done.returncode == 1
    assert "without an optimizer step" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-n", "1"), "-n 1: a whole number of at least 2"),
        (("--steps", "0"), "--steps 0: a whole number of at least 1"),
        (("--stepps", "3"), "there is no option --stepps"),
    ],
)
def test_wrong_input(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    """One error, exit code 2."""
    done = prove(tmp_path, "", *options)
    assert done.returncode == 2
    assert message in done.stderr
