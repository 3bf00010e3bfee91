"""Trainings that are no faster on several ranks are noted; short and fast trainings are not."""

import re
from pathlib import Path

import pytest
from tests import warm

from echelon.train.check.pace import crowded

SCRIPT = """
import sys

import torch
from torch import nn

width, rows, num_steps = map(int, sys.argv[1:])
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(num_steps):
    loss = model(torch.randn(rows, width)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TRIES = 3
"""What else runs on a machine may fall on the one spot that is measured, or take the cores of a rank."""


def said(folder: Path, *words: str) -> str:
    (folder / "train.py").write_text(SCRIPT)
    done = warm.run(["-m", "echelon", "run", "-n", "2", "train.py", *words], cwd=folder)
    assert done.returncode == 0, done.stderr
    return "".join(line for line in done.stderr.splitlines() if "note: a step of" in line)


@pytest.mark.tier("all")
def test_exchange_that_takes_longer_than_computing_is_said(tmp_path: Path) -> None:
    """Ranks that exchange 20 MB to compute four samples are said to be slower than one, once, with both times."""
    lines = (said(tmp_path, "1600", "4", "90") for _ in range(TRIES))
    line = next(filter(None, lines), "")
    times = r"a rank computes its part in [\d.]+ ms, and the ranks exchange gradients in [\d.]+ ms|2 ranks share 1 core"
    assert re.fullmatch(
        rf"echelon: note: a step of 2 ranks takes [\d.]+ ms, and one rank alone would take about [\d.]+ ms: ({times}) "
        r"\(way out: use a larger batch, or fewer ranks\)",
        line,
    ), line


@pytest.mark.tier("all")
def test_short_run_gets_no_note(tmp_path: Path) -> None:
    """A run of less than 75 steps is too short to know."""
    assert said(tmp_path, "1600", "4", "60") == ""


@pytest.mark.tier("all")
def test_run_that_mostly_computes_gets_no_note(tmp_path: Path) -> None:
    """A run that mostly computes gets no note while its ranks have their cores for themselves."""
    assert "" in (said(tmp_path, "256", "4096", "90") for _ in range(TRIES))


def test_ranks_that_share_cores_are_counted_on_each_node() -> None:
    """Ranks are crowded where a node has more of them than they may use of its cores."""
    assert crowded([("a", (0, 1)), ("a", (0, 1)), ("a", (0, 1)), ("b", (0,))]) == "3 ranks share 2 cores"
    assert crowded([("a", (0,)), ("a", (1,)), ("b", (0,)), ("b", (1, 2))]) == ""
