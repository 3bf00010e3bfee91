"""Random numbers inside of models are those of one device, or the run names what draws otherwise."""

import re
import subprocess
from pathlib import Path

import pytest
from tests import warm

START = """
import random, sys, torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
random.seed(0)
"""
LOOP = """
loader = DataLoader(TensorDataset(torch.randn(46, 5, 6), torch.randn(46, 1)), batch_size=8, shuffle=True)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(2):
    for step, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
        print(f"loss {loss.item():.7f}")
print("then", f"{torch.rand(1).item():.7f} {random.random():.7f}")
"""
NOISY = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.1, batch_first=True)
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)
        self.time = nn.Embedding(20, 6)
    def block(self, layer, x):
        return F.dropout(torch.relu(layer(x)), 0.2)
    def forward(self, x):
        t = torch.randint(0, 20, (x.shape[0],))
        x = x + 0.1 * torch.randn_like(x) + self.time(t)[:, None]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            x = self.layer(x)
        if torch.rand(()) < 0.5 or random.random() < 0.5:
            x = checkpoint(self.block, self.first, x, use_reentrant=False)
        x = checkpoint(self.block, self.second, x, use_reentrant=False)
        return self.last(F.dropout1d(x.transpose(1, 2), 0.1).mean(2))
"""
RECURRENT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(6, 4, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(4, 1)
    def forward(self, x):
        return self.last(self.lstm(x)[0][:, -1])
"""
SELECTS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 1)
    def forward(self, x):
        x = self.first(x.mean(1))
        chosen = x[:, 0] > x[:, 1]
        x = x.masked_scatter(chosen[:, None], F.dropout(x[chosen], 0.5))
        return self.last(x)
"""
GUESSED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 1)
    def forward(self, x):
        noise = torch.randn(len(x) // 2 + 1, 6)
        return self.last(torch.cat([noise, noise])[: len(x)] + self.first(x.mean(1)))
"""
COSTLY = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 1)
    def forward(self, x):
        rate = nn.functional.softplus(self.first(x.mean(1)))
        x = torch.distributions.Gamma(rate, 1.0).rsample() + torch.distributions.Poisson(rate).sample()
        return self.last(x)
"""
BY_SAMPLE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 1)
    def forward(self, x):
        kept = torch.tensor([[float(random.random() < 0.5)] for _ in x])
        return self.last(kept * self.first(x.mean(1)))
"""
COMPILED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 1)
        self.drop = torch.compile(nn.Dropout(0.5), backend="eager")
    def forward(self, x):
        return self.last(self.drop(self.first(x.mean(1))))
"""
STOPS = """
import os
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 1)
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls == 5 and dict(os.environ).get("RA" + "NK") == "1":
            torch.jit.script(nn.Dropout(0.5))
        return self.last(F.dropout(self.first(x.mean(1)), 0.5))
"""


def run(folder: Path, model: str, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run a script; without options by Python itself."""
    (folder / "train.py").write_text(START + model + LOOP)
    words = ["-m", "echelon", "run", *options, "train.py"] if options else ["train.py"]
    done = warm.run(words, cwd=folder, timeout=150)
    assert done.returncode == 0, done.stderr
    return done


def numbers(done: "subprocess.CompletedProcess[str]") -> list[float]:
    return [float(one) for one in re.findall(r"\d+\.\d+", done.stdout)]


def test_each_function(tmp_path: Path) -> None:
    """Each function that draws gives a rank its rows of what one device draws, and leaves the generator as there."""
    done = warm.run(["-m", "tests.train.rng_cases"], cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout + done.stderr


def test_noisy_model(tmp_path: Path) -> None:
    """Dropout, noise, timesteps and coins, recomputed and accumulated: losses of one device, and its state after."""
    done = run(tmp_path, NOISY, "-n", "3")
    assert "first step: equals that of one device" in done.stderr
    assert numbers(done) == pytest.approx(numbers(run(tmp_path, NOISY)), rel=1e-5, abs=1e-6)


def test_what_costs_more(tmp_path: Path) -> None:
    """With --same-random distributions whose rows take unequally many numbers are those of one device too."""
    done = run(tmp_path, COSTLY, "-n", "2", "--same-random")
    assert "first step: equals that of one device" in done.stderr
    assert numbers(done) == pytest.approx(numbers(run(tmp_path, COSTLY)), rel=1e-4)


@pytest.mark.parametrize(
    ("model", "what", "first_step"),
    [
        (RECURRENT, "dropout between the layers of lstm()", "equals that of one device"),
        (SELECTS, "models, because some ranks draw for samples that they select", ""),
        (COSTLY, "_standard_gamma(); use --same-random to draw as one device does", "not compared"),
        (
            COMPILED,
            "models, because torch.compile has compiled the functions that draw them",
            "equals that of one device",
        ),
    ],
    ids=["kernel", "selects", "costs more", "compiled"],
)
def test_what_draws_otherwise_is_named(tmp_path: Path, model: str, what: str, first_step: str) -> None:
    """Where a rank draws for itself a line says what for, once, and the training goes on."""
    done = run(tmp_path, model, "-n", "2")
    assert done.stderr.count("random numbers: each rank draws its own for " + what) == (1 if what else 0)
    assert "first step: " + first_step in done.stderr
    assert done.stdout.count("loss") == 12


@pytest.mark.parametrize("model", [BY_SAMPLE, GUESSED], ids=["by sample", "guessed"])
def test_what_cannot_be_cut_is_refused(tmp_path: Path, model: str) -> None:
    """Numbers for each sample that no rule cuts are refused with their line, with the check and without."""
    (tmp_path / "train.py").write_text(START + model + LOOP)
    line = next(at for at, one in enumerate((START + model).splitlines(), 1) if "kept =" in one or "noise =" in one)
    for options in ([], ["--no-check"]):
        done = warm.run(["-m", "echelon", "run", "-n", "2", *options, "train.py"], cwd=tmp_path, timeout=150)
        assert done.returncode == 2
        assert f"Model draws numbers for each of its samples at train.py:{line}" in done.stderr


def test_single_recurrent_layer(tmp_path: Path) -> None:
    """Dropout is between the layers: a single layer has none, so nothing is said and all losses are equal."""
    one_layer = RECURRENT.replace("num_layers=2", "num_layers=1")
    done = run(tmp_path, one_layer, "-n", "2")
    assert "random numbers" not in done.stderr
    assert numbers(done) == pytest.approx(numbers(run(tmp_path, one_layer)), rel=1e-5, abs=1e-6)


def test_rank_that_stops_by_itself(tmp_path: Path) -> None:
    """Where a single rank no longer draws as one device, the others learn it and draw for themselves too."""
    done = run(tmp_path, STOPS, "-n", "2")
    assert done.stderr.count("random numbers: each rank draws its own for models") == 1
    assert done.stdout.count("loss") == 12
