"""Find the rank that makes the others wait, and say what takes its time.

Ranks that train together make as many steps a second. So a step takes equally long on all of them, and the slow rank
is the one that waits least for the others: what counts is the time of its steps without its waits in communication.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, median_low

from echelon.monitor import lines
from echelon.monitor.lines import RankLines
from echelon.units import step_time

LEAST_STEPS = 20
LEAST_EXCESS = 0.05
"""The part by which a rank's own time must exceed that of the others; also by the standard deviation of one step."""
NOISES = 5.0
"""So many standard deviations of the ranks' own times are chance."""
_DEVIATION = 1.4826  # the standard deviation of a normal distribution, in its median absolute deviations
_CAUSES = {
    "data_seconds": "waits for its DataLoader",
    "save_seconds": "saves",
    "optimizer_seconds": "takes longer in the optimizer",
    "backward_seconds": "computes longer backward",
}
COMPUTES = "computes longer, for its device's clock, its cores, or another program on its node"

Measures = dict[str, float]
"""What a rank has measured so far, by the names of `node.pulse.MEASURES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank that makes the others wait."""

    rank: int
    excess: float
    """The part by which its own time of a step exceeds the median."""
    seconds: float
    """The time of a step that the others would not need."""
    cause: str
    """What it does with this time: "waits for its DataLoader"."""


def sentence(straggler: Straggler) -> str:
    """Say which rank makes the others wait, how long, and why."""
    return (
        f"rank {straggler.rank} makes the others wait {step_time(straggler.seconds)} in each step, "
        f"{straggler.excess:.0%} more than they need themselves: it {straggler.cause}"
    )


def find(
    before: Sequence[Measures],
    after: Sequence[Measures],
    num_steps: int,
    in_lines: Mapping[int, RankLines] = {},
) -> list[Straggler]:
    """Return the stragglers between two samples of all ranks, the slowest first.

    `in_lines` are the lines of the script in which the ranks were; they name the cause.

    >>> calm = {"step_seconds": 10.0, "communication_seconds": 2.0}
    >>> slow = {"step_seconds": 10.0, "communication_seconds": 0.5, "data_seconds": 1.5}
    >>> [(each.rank, round(each.excess, 2), each.cause) for each in find([{}] * 4, [calm, calm, slow, calm], 20)]
    [(2, 0.19, 'waits for its DataLoader')]
    """
    passed = [
        {name: value - earlier.get(name, 0.0) for name, value in later.items()}
        for earlier, later in zip(before, after, strict=True)
    ]
    if num_steps < LEAST_STEPS or len(passed) < 2 or not all("communication_seconds" in each for each in passed):
        return []
    own = [each.get("step_seconds", 0.0) - each["communication_seconds"] for each in passed]
    usual = median_low(own)
    if usual <= 0:
        return []
    limit = max(LEAST_EXCESS, NOISES * _noise(own, usual), _of_one_step(passed, own, num_steps))
    slow = [
        Straggler(rank=rank, excess=excess, seconds=(seconds - usual) / num_steps, cause=_cause(passed, rank, in_lines))
        for rank, seconds in enumerate(own)
        if (excess := seconds / usual - 1) > limit
    ]
    return sorted(slow, key=lambda each: -each.excess)


def _noise(own: Sequence[float], usual: float) -> float:
    """Return the standard deviation of the ranks' own times, as a part of the usual one; a few slow ranks add nothing.

    The times of less than four ranks tell nothing of it.
    """
    if len(own) < 4:
        return 0.0
    return _DEVIATION * median(math.fabs(seconds - usual) for seconds in own) / usual


def _of_one_step(passed: Sequence[Measures], own: Sequence[float], num_steps: int) -> float:
    """Return the standard deviation of one step of the usual rank, as a part of its mean; 0 if no rank tells it."""
    deviations = [
        math.sqrt(max(0.0, num_steps * each["own_squares"] / seconds**2 - 1))
        for each, seconds in zip(passed, own, strict=True)
        if "own_squares" in each and seconds > 0
    ]
    return median_low(deviations) if deviations else 0.0


def _cause(passed: Sequence[Measures], rank: int, in_lines: Mapping[int, RankLines]) -> str:
    """Return the part of the step, and the line of the script, to which most of the excess belongs."""
    excess = {
        name: passed[rank].get(name, 0.0) - median_low([each.get(name, 0.0) for each in passed]) for name in _CAUSES
    }
    own = [each.get("step_seconds", 0.0) - each["communication_seconds"] for each in passed]
    whole = own[rank] - median_low(own)
    name = max(excess, key=lambda name: excess[name])
    part = _CAUSES[name] if excess[name] >= whole / 2 else ""
    slower = lines.slower(in_lines, rank)
    if slower is None or slower[1] * passed[rank].get("step_seconds", 0.0) < whole / 2:
        return part or COMPUTES
    line, _, state = slower
    return f"{part}, {lines.does(line, state)}" if part else f"is longer {lines.does(line, state)}"
