"""The steps a second of a run after its warm-up."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from echelon.monitor.account import Account
from echelon.monitor.recorded import Recorded

WARM_SHARE = 0.4
"""The first part of a run's steps, which does not count."""
NUM_BLOCKS = 4
"""The steps after it are divided into so many parts, which show the spread."""
FEWEST_STEPS = 10
"""Fewer steps give no rate."""


def of_run(files: Recorded, account: Account) -> tuple[float, float | None] | None:
    """Return the steps a second and their spread, which may be unknown; None for a run with too few steps."""
    if account.steps is None or account.steps.number < FEWEST_STEPS or not account.steps.per_second:
        return None
    return _of_samples(files) or (account.steps.per_second, None)


def _of_samples(files: Recorded) -> tuple[float, float] | None:
    """Return the steps a second after the warm-up, and their spread, from the samples of the last attempt; or None."""
    last = max((int(sample.get("attempt") or 0) for sample in files.samples), default=0)
    seen = [
        (float(sample["time"]), _steps(sample["steps"]))
        for sample in files.samples
        if sample.get("attempt") == last and "steps" in sample
    ]
    seen = [(moment, steps) for moment, steps in seen if steps]
    if not seen:
        return None
    first = seen[0][1] + WARM_SHARE * (seen[-1][1] - seen[0][1])
    steady = [point for point in seen if point[1] >= first]
    while len(steady) > 1 and steady[-1][1] == steady[-2][1]:
        steady.pop()  # the steps have ended, the ranks have not
    if len(steady) <= NUM_BLOCKS or steady[-1][1] - steady[0][1] < FEWEST_STEPS:
        return None
    edges = [steady[(len(steady) - 1) * place // NUM_BLOCKS] for place in range(NUM_BLOCKS + 1)]
    rates = [(steps - before) / (moment - earlier) for (earlier, before), (moment, steps) in pairwise(edges)]
    mean = (edges[-1][1] - edges[0][1]) / (edges[-1][0] - edges[0][0])
    return mean, min(0.99, max(abs(rate / mean - 1) for rate in rates))


def _steps(value: Any) -> float:
    """Return the steps of a sample: one number, or a list with one for each rank."""
    numbers = [number for number in (value if isinstance(value, list) else [value]) if isinstance(number, (int, float))]
    return float(max(numbers, default=0))
