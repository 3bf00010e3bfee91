"""`echelon run` with the options that say how a script is scaled, beside plain Python."""

import re
import subprocess
from pathlib import Path

import pytest
from tests import warm

SCRIPT = """
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
batch_size, lr = int(sys.argv[1]), float(sys.argv[2])
x, y = torch.randn(90, 6), torch.randint(3, (90,))
loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)
valid = DataLoader(TensorDataset(x[:50], y[:50]), batch_size=20)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
highest = optimizer.param_groups[0]["lr"]
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=highest, total_steps=3 * len(loader))
for _epoch in range(3):
    for a, b in loader:
        loss = nn.functional.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.7f} lr {scheduler.get_last_lr()[0]:.6f} of {len(a)} in {len(loader)}")
        scheduler.step()
    with torch.no_grad():
        hits = sum((model(a).argmax(1) == b).sum().item() for a, b in valid)
        total = sum(nn.functional.cross_entropy(model(a), b, reduction="sum").item() for a, b in valid)
    print(f"valid {hits} {total:.4f}")
"""

INFERENCE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
samples = TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,)))
loader = DataLoader(samples, batch_size=8, num_workers=1, persistent_workers=True)
x, _ = next(iter(loader))
model = nn.Linear(x.shape[1], 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")
    model.eval()
    with torch.inference_mode():
        means = [nn.functional.cross_entropy(model(x), y).item() for x, y in DataLoader(samples, batch_size=8)]
    print(f"valid {sum(means):.6f}")
    model.train()
"""
"""Looks into its loader before it trains, and evaluates where PyTorch counts no versions of tensors."""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(SCRIPT)
    return warm.run(words, cwd=folder)


def numbers(done: subprocess.CompletedProcess[str]) -> list[float]:
    assert done.returncode == 0, done.stderr
    return [float(number) for number in re.findall(r"[\d.]+", done.stdout)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return numbers(run(tmp_path_factory.mktemp("alone"), "train.py", "30", "0.2"))


def test_scaled_without_being_asked(tmp_path: Path, alone: list[float]) -> None:
    """Nothing but the number of ranks is said; every number that is printed is that of one device."""
    done = run(tmp_path, "-m", "echelon", "run", "-n", "2", "train.py", "30", "0.2")
    assert "scaled over 2 ranks" in done.stderr
    assert numbers(done) == pytest.approx(alone, rel=1e-5)


def test_not_scaled_where_that_is_said(tmp_path: Path) -> None:
    """With --scale off each rank runs the script as it is."""
    done = run(tmp_path, "-m", "echelon", "run", "-n", "2", "--scale", "off", "train.py", "30", "0.2")
    assert "scaled over" not in done.stderr
    assert done.returncode == 0


def test_evaluation_is_shared(tmp_path: Path, alone: list[float]) -> None:
    """Hits and sums over a validation set come out as on one device when each rank has a part of it."""
    done = run(tmp_path, "-m", "echelon", "run", "-n", "3", "--shard-eval", "--no-check", "train.py", "30", "0.2")
    assert "first step" not in done.stderr
    assert numbers(done) == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize(("rule", "factor"), [("linear", 2.0), ("sqrt", 2**0.5)])
def test_batch_of_each_rank(tmp_path: Path, alone: list[float], rule: str, factor: float) -> None:
    """Two ranks with 15 samples each are one device with 30; the learning rate grows before a scheduler reads it."""
    words = ["--per-device-batch", "--scale-lr", rule, "train.py", "15", str(0.2 / factor)]
    done = run(tmp_path, "-m", "echelon", "run", "-n", "2", *words)
    assert numbers(done) == pytest.approx(alone, rel=2e-5)


@pytest.mark.parametrize("words", [["--shard-eval"], ["--shard-eval", "--exact", "4"]])
def test_a_look_ahead_and_inference_mode(tmp_path: Path, words: list[str]) -> None:
    """A batch that is only looked at costs persistent workers nothing; inference tensors are shared like others."""
    (tmp_path / "looks.py").write_text(INFERENCE)
    done = run(tmp_path, "-m", "echelon", "run", "-n", "2", *words, "looks.py")
    assert "first step: equals that of one device" in done.stderr
    assert numbers(done) == pytest.approx(numbers(run(tmp_path, "looks.py")), rel=1e-5)


def test_error_of_the_script(tmp_path: Path) -> None:
    """A script that fails on one device fails with the same error, and is not said to be one that cannot be scaled."""
    (tmp_path / "wrong.py").write_text(
        "import torch\nmodel = torch.nn.Linear(4, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.randn(8, 3)).sum().backward()\n"
    )
    alone = run(tmp_path, "wrong.py")
    done = run(tmp_path, "-m", "echelon", "run", "-n", "2", "wrong.py")
    assert alone.stderr.splitlines()[-1] in done.stderr
    assert "cannot be scaled" not in done.stderr


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--scale", "dat"], "--scale dat", "data"),
        (["--scale-lr", "linear"], "--scale-lr is for a global batch that grows with the ranks", "--per-device-batch"),
        (["--scale", "off", "--sync-bn"], "--sync-bn is for a script that echelon scales", "remove --scale off"),
        (["--per-device-batch", "--scale-lr", "cubic"], "--scale-lr cubic", "linear"),
    ],
)
def test_wrong_input(tmp_path: Path, words: list[str], message: str, hint: str) -> None:
    """One error with the way out, and exit code 2."""
    done = run(tmp_path, "-m", "echelon", "run", "-n", "2", *words, "train.py", "30", "0.2")
    assert done.returncode == 2
    assert message in done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


KEPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(6, 1)
weights = tuple(model.parameters())
optimizer = torch.optim.SGD(weights, lr=0.1)
for step, x in enumerate(torch.randn(96, 6).split(16)):
    loss = (model(x) - step).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(weights, max_norm=5.0)
    by_one = nn.utils.clip_grad_norm_(parameters=weights[0], max_norm=4.0)
    optimizer.step()
    print(f"loss {loss.item():.5f} norm {norm.item():.5f} {by_one.item():.5f}")
"""


@pytest.mark.parametrize("scale", ["data", "fsdp"])
def test_weights_that_a_script_has_kept_are_clipped(tmp_path: Path, scale: str) -> None:
    """Clipping knows weights from before they were spread; in later steps alone it was left out without a word."""
    (tmp_path / "kept.py").write_text(KEPT)
    alone, spread = (
        numbers(warm.run(words, cwd=tmp_path))
        for words in (["kept.py"], ["-m", "echelon", "run", "-n", "2", "--scale", scale, "kept.py"])
    )
    assert len(alone) == 18
    assert spread == pytest.approx(alone, rel=1e-4)


NO_BACKWARD = """
import sys

import torch
from torch import nn
from torch.func import functional_call, grad_and_value

torch.manual_seed(0)
model = nn.Linear(6, 1)
x = torch.randn(48, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of(weights, a):
    return (functional_call(model, weights, (a,)) - a.sum(1, keepdim=True)).pow(2).mean()


for a in x.split(16):
    if "func" in sys.argv:
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        gradients, loss = grad_and_value(loss_of)(weights, a)
        gradients = gradients.values()
    else:
        loss = (model(a) - a.sum(1, keepdim=True)).pow(2).mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
    for weight, gradient in zip(model.parameters(), gradients):
        weight.grad = gradient
    optimizer.step()
    print(f"loss {loss.item():.5f}")
"""


@pytest.mark.parametrize(("words", "is_shared"), [([], True), (["func"], False)])
def test_training_without_backward(tmp_path: Path, words: list[str], is_shared: bool) -> None:
    """It is scaled without being asked; where ranks have no part of it, each computes all, and a line says so."""
    (tmp_path / "train.py").write_text(NO_BACKWARD)
    alone = warm.run(["train.py", *words], cwd=tmp_path)
    done = warm.run(["-m", "echelon", "run", "-n", "2", "train.py", *words], cwd=tmp_path)
    assert numbers(done) == pytest.approx(numbers(alone), rel=1e-4)
    assert ("scaled over 2 ranks" in done.stderr) == is_shared
    assert ("each rank runs the whole script by itself" in done.stderr) != is_shared
