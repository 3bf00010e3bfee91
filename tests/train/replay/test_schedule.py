"""When ranks meet to hear whether they are to save and end."""

import time
from pathlib import Path

import pytest

from echelon.orders.checkpoint import CheckpointOrder
from echelon.train.checkpoints import schedule as schedules
from echelon.train.checkpoints.schedule import Schedule


def test_order_is_noticed_soon_after_a_resumed_step(tmp_path: Path) -> None:
    """The steps that were repeated took no time, so they do not count for the time of a step."""
    schedule = Schedule(CheckpointOrder("checkpoints", steps=1 << 30), 1, order_file=str(tmp_path / "order"))
    schedule.note_saved(100_000)
    time.sleep(0.6)
    assert schedule.due(100_001) == (False, False)
    (tmp_path / "order").touch()
    time.sleep(0.6)
    assert schedule.due(100_002) == (True, True)


class Clock:
    """Seconds that pass as a test wants."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("later", [0.001, 0.02, 0.3])
def test_order_is_noticed_after_steps_that_became_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: float
) -> None:
    """The first step takes a microsecond by the clock; the ranks still meet within a second, or within 50 steps."""
    clock = Clock()
    monkeypatch.setattr(schedules, "time", clock)
    order = tmp_path / "order"
    due = Schedule(CheckpointOrder("checkpoints", steps=10_000), 1, str(order)).due
    clock.now += 1e-6
    given_at = 0
    for step in range(1, 400):
        if step == 100:
            order.touch()
            given_at = step
        found = due(step)
        if found.ends:
            break
        clock.now += 0.0001 if step < 20 else later
    assert given_at == 100
    assert found.ends
    assert step - given_at <= 50
    assert (step - given_at) * later <= 1.5


def test_state_that_was_in_memory_alone_is_saved_after_the_next_step() -> None:
    """It is owed to the disk, once."""
    schedule = Schedule(CheckpointOrder("checkpoints", steps=100), 1, order_file="")
    schedule.note_saved(7, on_disk=False)
    assert [step for step in range(7, 10) if schedule.due(step).saves] == [8, 9]
    schedule.note_saved(8)
    assert [step for step in range(8, 102) if schedule.due(step).saves] == [100, 101]
