"""An ordered fault waits for the first checkpoint, once, also where no record is kept."""

import threading
import time
from pathlib import Path

import pytest
import torch

from echelon.orders.rehearsal import KILL_RANK, Fault, Rehearsal
from echelon.train.rehearsal import course, faults


def struck_at(folder: Path, num_steps: int, monkeypatch: pytest.MonkeyPatch) -> "list[int]":
    """Make steps, and return those after which the fault struck."""
    steps: list[int] = []
    now = 0

    def strike(kind: str, checkpoints: str) -> None:
        steps.append(now)

    monkeypatch.setattr(faults, "strike", strike)
    order = course.RehearsedRun(Rehearsal(Fault(KILL_RANK, 0, 2)), 0, needs_checkpoint=True)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    for now in range(1, num_steps + 1):
        order.stepped(optimizer, now, str(folder))
    return steps


def publish(folder: Path) -> None:
    (folder / "step-1").mkdir(parents=True)
    (folder / "step-1" / "manifest.json").touch()


def test_fault_waits_for_the_first_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps are much shorter than the save, which a thread writes."""
    timer = threading.Timer(0.5, publish, [tmp_path])
    timer.start()
    assert struck_at(tmp_path, 5, monkeypatch) == [2]
    timer.join()


def test_fault_waits_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a checkpoint it does not happen, and it holds up one step alone."""
    monkeypatch.setattr(course, "_PATIENCE_SECONDS", 0.2)
    waits = []
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: (waits.append(seconds), sleep(seconds))[1])
    assert struck_at(tmp_path, 5, monkeypatch) == []
    assert 0 < sum(waits) <= 0.21
