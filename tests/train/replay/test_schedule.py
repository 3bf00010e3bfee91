"""When ranks meet to hear whether they are to save and end."""

import time
from pathlib import Path

from echelon.checkpoint_order import Order
from echelon.train.replay.schedule import Schedule


def test_order_is_noticed_soon_after_a_resumed_step(tmp_path: Path) -> None:
    """The steps that were repeated took no time, so they do not count for the time of a step."""
    schedule = Schedule(Order("checkpoints", steps=1 << 30), 1, order_file=str(tmp_path / "order"))
    schedule.note_saved(100_000)
    time.sleep(0.6)
    assert schedule.due(100_001) == (False, False)
    (tmp_path / "order").touch()
    time.sleep(0.6)
    assert schedule.due(100_002) == (True, True)
