"""A rank never waits for ever for ranks that do not come: the run says who waits where, for whom."""

import subprocess
from pathlib import Path

import pytest
from tests import warm
from tests.tiers import some

SCRIPT = """
import os, sys, time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

waiting = next(module for name, module in sys.modules.items() if name.endswith("train.wire.waiting"))
waiting.LOOK_SECONDS, waiting.STILL_SECONDS, waiting.FIRST_NOTE_SECONDS = 0.5, 2.0, 3.0
rank = int(os.environ["RA" + "NK"])  # which echelon does not read as that of a script that distributes itself
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)):
    loss = nn.functional.mse_loss(model(x), y)
    if step == 3:
        ACT
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("trained")
"""


def run(folder: Path, act: str, *options: str) -> "subprocess.CompletedProcess[str]":
    (folder / "train.py").write_text(SCRIPT.replace("ACT", act))
    line = ["-m", "echelon", "run", "-n", "2", *options, "train.py"]
    done: subprocess.CompletedProcess[str] = warm.run(line, cwd=folder)
    return done


def test_ranks_that_wait_for_each_other(tmp_path: Path) -> None:
    """Rank 0 saves, which all must do, and rank 1 exchanges gradients: the run ends, and names both lines."""
    done = run(tmp_path, 'rank or torch.save(model.state_dict(), "model.pt")')
    assert done.returncode == 2, done.stderr
    assert "the ranks wait for each other at different lines, so none can continue: " in done.stderr
    assert "rank 0 at train.py:17; rank 1 at train.py:19" in done.stderr
    assert "way out: let all ranks take the same decisions: do not decide by a rank's own clock" in done.stderr


def test_slow_rank_is_waited_for(tmp_path: Path) -> None:
    """A rank that is only slow is named, with its line, and the training goes on."""
    done = run(tmp_path, "time.sleep(8 * rank)")
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout
    assert "s at train.py:19 for rank 1, which is at train.py:17" in done.stderr


def test_ranks_that_wait_at_one_line(tmp_path: Path) -> None:
    """Ranks that come to different exchanges at the same line of the script are told so as well."""
    group = 'getattr(torch, "distri" + "buted")'
    done = run(tmp_path, f"{group}.recv(torch.ones(1), 0) if rank else {group}.barrier()")
    assert done.returncode == 2, done.stderr
    assert "the ranks wait for each other in different exchanges at train.py:17, so none can continue" in done.stderr


@pytest.mark.parametrize("launch", some(["warm", "exec"], 2))
def test_end_of_a_rank_while_the_thread_is_in_the_store(tmp_path: Path, launch: str) -> None:
    """The thread that looks all the time ends before Python does, which would abort the process inside of a call."""
    done = run(tmp_path, "waiting.LOOK_SECONDS = 1e-6", "--launch", launch)
    assert done.returncode == 0, done.stderr
    assert "trained" in done.stdout
