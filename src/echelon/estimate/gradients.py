"""Tell the gradients that a step keeps from those that are added to others, and its last backward from earlier ones."""

from __future__ import annotations

from collections.abc import Sequence

from echelon.estimate.log import BACKWARD, STEP, Event, Tensor


def last_backwards(events: Sequence[Event]) -> set[int]:
    """Return the position at which the last backward of each step begins."""
    last: dict[int, int] = {}
    step = 0
    for position, event in enumerate(events):
        if event == STEP:
            step += 1
        elif event == BACKWARD:
            last[step] = position
    return set(last.values())


def is_kept(events: Sequence[Event], position: int, tensors: Sequence[Tensor]) -> bool:
    """Say whether an event allocates a gradient that is not freed at once."""
    event = events[position]
    if type(event) is not int or event < 0 or tensors[event].category != "gradient":
        return False
    return position + 1 == len(events) or events[position + 1] != -event - 1
