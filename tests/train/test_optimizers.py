"""Optimizers that a script makes one after another: the ranks agree on those that exist."""

from pathlib import Path

import pytest
from tests import warm

FOLDS = """
import gc
import os

import torch
from torch import nn

torch.manual_seed(0)
is_second = dict(os.environ).get("RA" + "NK") == "1"
gc.disable()
x, y = torch.randn(32, 6), torch.randint(3, (32,))
for fold in range(3):
    model = nn.Sequential(nn.Linear(6, 4 + fold), nn.Tanh(), nn.Linear(4 + fold, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.trains, model.trained_by = [model], [optimizer]
    for _ in range(3):
        if is_second:
            gc.collect()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.6f}")
"""
"""Models and optimizers in cycles, which Python frees at any time: here one rank frees them, the other does not."""


@pytest.mark.parametrize(
    "words", [(), ("--exact", "2"), pytest.param(("--scale", "fsdp"), marks=pytest.mark.tier("all"))]
)
def test_optimizer_that_a_rank_alone_has_freed(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Ranks that free the optimizer of an earlier model at other moments train the next model together."""
    (tmp_path / "train.py").write_text(FOLDS)
    alone = warm.run(["train.py"], cwd=tmp_path)
    done = warm.run(["-m", "echelon", "run", "-n", "2", *words, "train.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = [float(loss) for loss in alone.stdout.split()]
    assert [float(loss) for loss in done.stdout.split()] == pytest.approx(expected, rel=1e-5)
