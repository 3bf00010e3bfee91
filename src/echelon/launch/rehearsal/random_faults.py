"""Draw, from a seed, the rank, the step and the moment of each fault."""

from __future__ import annotations

import random

from echelon.rehearsal_order import (
    DROP_NODE,
    FILL_DISK,
    FREEZE_RANK,
    KILL_AGENT,
    KILL_RANK,
    SIGNAL,
    TEAR_CHECKPOINT,
    Fault,
)

OF_ANY_SCRIPT = (KILL_RANK, FREEZE_RANK, KILL_AGENT, DROP_NODE)
"""The faults that need no checkpoint of echelon's."""
_LONGEST_DELAY = 0.25


def interval(num_steps: int) -> int:
    """Return the steps between two checkpoints.

    >>> interval(20)
    5
    """
    return max(1, num_steps // 4)


def draw(kind: str, seed: int, *, num_ranks: int, num_steps: int, step_seconds: float, is_own: bool = False) -> Fault:
    """Return a fault at a step from which a training of `num_steps` steps can go on.

    A save lasts longer than some steps, so the moment may be in the middle of one: at most `_LONGEST_DELAY` seconds,
    or three steps, after the end of the drawn step. `step_seconds` is the time of a step. A script that distributes
    itself (`is_own`) has its own snapshots.

    >>> draw("kill-rank", 0, num_ranks=4, num_steps=20, step_seconds=0.01) == \
        draw("kill-rank", 0, num_ranks=4, num_steps=20, step_seconds=0.01)
    True
    """
    chance = random.Random(f"{seed} {kind}")
    first, last = (max(1, num_steps // 3), num_steps - 1) if is_own else _steps(kind, num_steps)
    rank = chance.randrange(num_ranks)
    step = chance.randint(first, max(first, last))
    longest = min(_LONGEST_DELAY, 3 * step_seconds)
    is_late = step > num_steps - 3 or chance.random() < 0.3  # the run must not end before the fault happens
    return Fault(kind, rank, step, delay=0.0 if is_late else round(chance.uniform(0.0, longest), 4))


def _steps(kind: str, num_steps: int) -> tuple[int, int]:
    """Return the first and the last step after which a fault may happen."""
    every = interval(num_steps)
    if kind == SIGNAL:  # and the run must not end before it has saved
        return 1, num_steps // 2
    if kind == FILL_DISK:  # and a save must follow
        return min(every + 1, num_steps - 1), num_steps // every * every - 1
    if kind == TEAR_CHECKPOINT:  # the one before is used
        return min(2 * every + 1, num_steps - 1), num_steps - 1
    return min(every + 1, num_steps - 1), num_steps - 1
