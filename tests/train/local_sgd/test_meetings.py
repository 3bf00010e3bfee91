"""`--sync-every`: ranks that train alone and meet are what a loop over ranks in one process computes."""

import contextlib
import io
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import warm
from tests.tiers import in_all
from tests.train.local_sgd.simulation import SCRIPT, simulate

from echelon.cli import main

UNEVEN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(101, 5)
loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
hits = 0
for inputs, targets in loader:
    outputs = model(inputs)
    loss = nn.functional.cross_entropy(outputs, targets) + 1e-3 * sum(one.square().sum() for one in model.parameters())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    hits += (outputs.argmax(1) == targets).sum().item()
    print(f"{loss.item():.6f}")
print(hits)
torch.save(model.state_dict(), "model.pt")
"""
"""Parts of a batch of 16 on three ranks are 6, 5 and 5 samples, of the last one of five 2, 2 and 1."""

OVERFLOWS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, y = torch.randn(64, 4), torch.randn(64, 1)
x[21] = 1e30  # of the third batch the second half
loader = DataLoader(TensorDataset(x, y), batch_size=8)
model, critic = nn.Linear(4, 1), nn.Linear(4, 1)
frozen = nn.Linear(4, 4).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
other = torch.optim.SGD([*critic.parameters(), *frozen.parameters()], lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for inputs, targets in loader:
    critic.requires_grad_(False)
    loss = (model(inputs) - targets).square().mean() + critic(inputs).mean() * 0
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    critic.requires_grad_(True)
    other.zero_grad()
    critic(torch.nan_to_num(inputs.clamp(-3, 3))).square().mean().backward()
    other.step()
with torch.no_grad():
    print("alike", model(torch.ones(1, 4)).item(), critic(torch.ones(1, 4)).item())
print(scaler.get_scale())
"""
"""One rank alone has a gradient that is too large, and a second model is frozen and thawed in every step."""

SILENT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

talk = getattr(torch, "distri" + "buted")
num_messages = [0]


def counted(original):
    def send(*args, **kwargs):
        num_messages[0] += 1
        return original(*args, **kwargs)

    return send


for name in ("all_reduce", "broadcast", "all_gather", "barrier"):
    setattr(talk, name, counted(getattr(talk, name)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.scores = nn.Embedding(9, 8), nn.Linear(8, 9)

    def forward(self, x, y=None):
        scores = self.scores(self.words(x))
        return scores if y is None else nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten(), ignore_index=0)


torch.manual_seed(0)
words = torch.randint(0, 9, (64, 5))
loader = DataLoader(TensorDataset(words[:, :-1], words[:, 1:]), batch_size=8)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weight = torch.rand(9)
for step, (x, y) in enumerate(loader):
    if step % 2:
        loss = model(x, y)
    else:
        loss = nn.functional.cross_entropy(model(x).view(-1, 9), y.view(-1), weight=weight, ignore_index=0)
    hits = (model(x).argmax(2) == y).sum()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(num_messages[0])
print(loss.item() > 0, hits.item() < 32, num_messages[0])
"""
"""Losses inside and outside of a model, with targets to ignore and weights of classes: each would need a count."""


def run(folder: Path, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    done = warm.run(["-m", "echelon", "run", *words, "train.py"], cwd=folder, timeout=150)
    assert done.returncode == 0, done.stderr
    return done


def assert_same(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    saved = torch.load(folder / "model.pt")
    assert saved.keys() == expected.keys()
    for name, tensor in expected.items():
        close = 1e-9 if tensor.dtype == torch.float64 else 2e-6
        assert torch.allclose(saved[name], tensor, rtol=close, atol=close), name


@pytest.mark.parametrize(
    ("words", "num_ranks", "rule", "said"),
    [
        ([], 3, (4, 1.0, 0.0, False), "average their weights after every 4 steps (local SGD);"),
        in_all(["--outer-lr", "0.5"], 2, (4, 0.5, 0.9, False), "momentum 0.9 and learning rate 0.5"),
        in_all(["--async"], 2, (4, 1.0, 0.0, True), "(local SGD, taken in one meeting later)"),
        (["--async", "--outer-momentum", "0.6"], 2, (4, 0.7, 0.6, True), "(DiLoCo, taken in one meeting later)"),
    ],
    ids=["local-sgd", "diloco", "late", "late-diloco"],
)
def test_equals_a_loop_over_ranks(tmp_path: Path, words: list[str], num_ranks: int, rule: Any, said: str) -> None:
    """Weights, BatchNorm's means and all that is printed are those of ranks simulated in one process."""
    done = run(tmp_path, SCRIPT, "-n", str(num_ranks), "--sync-every", "4", *words)
    printed, expected = simulate(num_ranks, *rule)
    assert [float(one) for one in done.stdout.split()] == pytest.approx(printed, rel=1e-9)
    assert_same(tmp_path, expected)
    assert f"this training differs from one device: {num_ranks} ranks train alone" in done.stderr
    assert said in done.stderr
    assert "echelon does not compare the first step" in done.stderr
    assert "equals that of one device" not in done.stderr
    # 12 steps of the first optimizer and 6 of the second to the evaluation, 6 and 3 to what is loaded, and to the end
    assert "ranks met 6 times in 36 steps, and 3 more to evaluate or save weights" in done.stderr


def test_meeting_after_every_step_is_data_parallel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With SGD and H = 1 weights, losses and hits are those of one device, for all is linear; also of uneven parts."""
    done = run(tmp_path, UNEVEN, "-n", "3", "--sync-every", "1")
    (tmp_path / "alone").mkdir()
    monkeypatch.chdir(tmp_path / "alone")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(UNEVEN, "train.py", "exec"), {"__name__": "__main__"})
    alone = [float(one) for one in printed.getvalue().split()]
    assert [float(one) for one in done.stdout.split()] == pytest.approx(alone, rel=2e-5)
    assert_same(tmp_path, torch.load("model.pt"))


def test_one_rank_skips_a_step(tmp_path: Path) -> None:
    """Where one rank's scaler leaves a step out, ranks still meet, and what is evaluated then is the same on all."""
    done = run(tmp_path, OVERFLOWS, "-n", "2", "--sync-every", "3", "--show", "all")
    alike = [line.split()[2:] for line in done.stdout.splitlines() if "alike" in line]
    assert len(alike) == 2
    assert alike[0] == alike[1]
    scales = [line.split()[1] for line in done.stdout.splitlines() if "alike" not in line]
    assert sorted(scales) == ["1024.0", "512.0"]
    assert "ranks met 4 times in 16 steps, and 1 more" in done.stderr


def test_nothing_is_exchanged_between_meetings(tmp_path: Path) -> None:
    """Losses, hits and clipping send nothing but at the meetings; what is read is one message."""
    done = run(tmp_path, SILENT, "-n", "2", "--sync-every", "4")
    *steps, read = done.stdout.splitlines()
    began = int(steps[0])
    assert [int(one) - began for one in steps] == [0, 0, 0, 1, 1, 1, 1, 2]
    assert read == f"True True {began + 4}"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("--sync-every 0", "--sync-every 0: give the number of steps", "--sync-every 100"),
        ("--sync-every often", "--sync-every often: give the number of steps", "--sync-every 100"),
        ("--async", "--async needs --sync-every", "--sync-every 100 --async"),
        ("--outer-lr 0.7", "--outer-lr needs --sync-every", "--sync-every 100 --outer-lr 0.7"),
        ("--sync-every 4 --outer-lr 0", "--outer-lr 0: give a number above 0", "--outer-lr 0.7"),
        ("--sync-every 4 --outer-momentum 1", "--outer-momentum 1: give a number from 0", "--outer-momentum 0.9"),
        ("--sync-every 4 --exact 2", "--sync-every does not go with --exact", "remove --exact"),
        ("--sync-every 4 --sync-bn", "--sync-every does not go with --sync-bn", "remove --sync-bn"),
        ("--sync-every 4 --scale fsdp", "--sync-every does not go with --scale fsdp", "--scale data --sync-every"),
        ("--sync-every 4 --compress bf16", "--sync-every does not go with --compress", "remove --compress"),
        ("--sync-every 4 --scale off", "--sync-every 4 is for a script that echelon scales", "remove --scale off"),
        ("--compress int8", "--compress int8: the choices are bf16, fp16 and powersgd", "--compress bf16"),
        ("--compress powersgd:0:1", "RANK must be at least 1", "--compress powersgd:1:2"),
        ("--compress bf16 --scale fsdp", "--compress does not go with --scale fsdp", "--scale data --compress bf16"),
        ("--compress bf16 --exact 2", "--compress does not go with --exact", "remove --exact"),
        ("--bucket-mb 0", "--bucket-mb 0: give the size of a gradient bucket", "--bucket-mb 4"),
        ("--bucket-mb 4 --compress powersgd", "--bucket-mb does not go with --compress powersgd", "remove --bucket-mb"),
    ],
)
def test_wrong_input(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    message: str,
    hint: str,
) -> None:
    """One error with the way out, and exit code 2, before anything is started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(UNEVEN)
    assert main(["run", "-n", "2", *words.split(), "train.py"]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert hint in shown
    assert not (tmp_path / "echelon-runs").exists()
