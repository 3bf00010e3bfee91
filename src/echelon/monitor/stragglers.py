"""Find the rank that makes the others wait, and say what takes its time.

Ranks that train together make as many steps a second. So a step takes equally long on all of them, and the slow rank
is the one that waits least for the others: what counts is the time of its steps without its waits in communication.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low
from typing import Any

from echelon.monitor import lines
from echelon.monitor.attempts import of_ranks, steps_of
from echelon.monitor.lines import RankLines, SlowerLine
from echelon.node import frames
from echelon.node.pulse import NOT_OWN
from echelon.units import counted, step_time

LEAST_STEPS = 20
LEAST_SECONDS = 0.5  # less time all together tells nothing: a blink of the machine is a large part of it
MOST_CAUSES = 3  # the slowest ranks alone have a cause: it compares each of them with all ranks
LEAST_EXCESS = 0.05
"""The part by which a rank's own time must exceed that of the others; also by the standard deviation of one step."""
NOISES = 5.0  # so many standard deviations of the ranks' own times are chance
NOISES_OF_MEAN = 2.5
"""So many standard errors of a rank's own time are chance: one very long step makes no slow rank, seven do."""
_DEVIATION = 1.4826  # the standard deviation of a normal distribution, in its median absolute deviations
_CAUSES = {
    "data_seconds": (frames.DATA, "waits for its DataLoader"),
    "save_seconds": (frames.SAVES, "saves"),
    "optimizer_seconds": (frames.OPTIMIZER, "takes longer in the optimizer"),
    "backward_seconds": (frames.IN_BACKWARD, "takes longer backward"),
}
"""What a rank measures → the part of a step that its lines have, and what the rank does in it."""
CORE_WAIT, BESIDE = "core_wait_seconds", "beside_seconds"
_HELD = {
    "throttled_seconds": "is not let run, as its cgroup has used up its share of cores",
    CORE_WAIT: "waits for a core, on which another rank or program runs",
    "disk_wait_seconds": "waits for a disk",
}
"""What holds a rank up that has nothing more to compute than others."""
WORKERS, THREADS = STANDING = "loader_workers", "threads"
"""Measures that are no sums."""
_OF_WORKERS = "; workers of the other ranks load while those wait, and may be no faster"
LEAST_WINDOWS = 4  # so many parts of a run must have a slow rank before the ranks are said to take turns
MOST_OF_ONE = 0.7  # a rank with a larger part of them is the straggler
LARGE = 1 / 8
"""A rank that was on its core longer than others, by this part of what it is slower by, has more to compute."""
TWICE = 1.0
"""Inputs that are larger by this part are told however slow the rank is: it may be slower than they are larger."""
_INPUTS = {"tokens": "tokens", "elements": "numbers", "samples": "samples"}
COMPUTES = "computes longer, perhaps for its device's clock, its cores, or another program on its node"

Measures = dict[str, float]  # what a rank has measured so far, by the names of `node.pulse.MEASURES`


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A rank that makes the others wait."""

    rank: int
    excess: float
    """The part by which its own time of a step exceeds the median."""
    seconds: float
    """The time of a step that the others would not need."""
    cause: str = ""
    """What it does with this time: "waits for its DataLoader"; empty where enough others have a cause."""


def sentence(straggler: Straggler) -> str:
    """Say which rank makes the others wait, how long, and why."""
    return (
        f"rank {straggler.rank} makes the others wait {step_time(straggler.seconds)} in each step, "
        f"{straggler.excess:.0%} more than they need themselves: it {straggler.cause}"
    )


def find(
    before: Sequence[Measures], after: Sequence[Measures], num_steps: int, in_lines: Mapping[int, RankLines] = {}
) -> list[Straggler]:
    """Return the stragglers between two samples of all ranks, the slowest first.

    `in_lines` are the lines of the script in which the ranks were; they name the cause.

    >>> calm = {"step_seconds": 10.0, "communication_seconds": 2.0}
    >>> slow = {"step_seconds": 10.0, "communication_seconds": 0.5, "data_seconds": 1.5}
    >>> [(each.rank, round(each.excess, 2), each.cause) for each in find([{}] * 4, [calm, calm, slow, calm], 20)]
    [(2, 0.19, 'waits for its DataLoader')]
    """
    passed = _passed(before, after)
    slow = _slow(passed, num_steps)
    return [
        replace(each, cause=_cause(passed, each.rank, num_steps, in_lines)) if place < MOST_CAUSES else each
        for place, each in enumerate(slow)
    ]


def _passed(before: Sequence[Measures], after: Sequence[Measures]) -> list[Measures]:
    return [
        {name: value - earlier.get(name, 0.0) * (name not in STANDING) for name, value in later.items()}
        for earlier, later in zip(before, after, strict=True)
    ]


def _slow(passed: Sequence[Measures], num_steps: int) -> list[Straggler]:
    """Return the stragglers without their causes, the slowest first."""
    if num_steps < LEAST_STEPS or len(passed) < 2 or not all("communication_seconds" in each for each in passed):
        return []
    own = [_own(each) for each in passed]
    usual = median_low(own)
    if usual <= 0 or max(each.get("step_seconds", 0.0) for each in passed) < LEAST_SECONDS:
        return []
    limit = max(LEAST_EXCESS, NOISES * _noise(own, usual), _of_one_step(passed, own, num_steps))
    slow = [
        Straggler(rank=rank, excess=excess, seconds=(seconds - usual) / num_steps)
        for rank, seconds in enumerate(own)
        if (excess := seconds / usual - 1) > limit
        and (seconds - usual) ** 2 > NOISES_OF_MEAN**2 * _variance(passed[rank], seconds, num_steps)
    ]
    return sorted(slow, key=lambda each: -each.excess)


def _own(measures: Measures) -> float:
    return measures.get("step_seconds", 0.0) - sum(measures.get(name, 0.0) for name in NOT_OWN)


def _variance(measures: Measures, own: float, num_steps: int) -> float:
    """Return the variance of the own time of all steps together, from the squares of each; 0 if they are not known."""
    return max(0.0, measures.get("own_squares", 0.0) - own**2 / num_steps)


def threads_beside(ranks: Sequence[Measures]) -> tuple[int, float]:
    """Return the rank whose own threads use cores most, beyond those of others, and the part of its steps they do.

    Threads that PyTorch and its collectives have use as much on all ranks; with several of PyTorch's nothing is known.
    """
    if len(ranks) < 2 or not all(each.get(THREADS) == 1 and each.get("step_seconds") for each in ranks):
        return -1, 0.0
    shares = [_excess(ranks, rank, BESIDE) / each["step_seconds"] for rank, each in enumerate(ranks)]
    return shares.index(max(shares)), max(shares)


def alternating_in(samples: Iterable[dict[str, Any]], attempt: int) -> dict[int, int]:
    """Return the same of an attempt, from lines of samples.jsonl."""
    told = [line for line in samples if line.get("attempt") == attempt and "measures" in line]
    return alternating((min(steps_of(line)), of_ranks(line)) for line in told)


def alternating(samples: Iterable[tuple[int, list[Measures]]]) -> dict[int, int]:
    """Return the ranks that make the others wait in turn, and in how many windows each does; empty if none do.

    `samples` are the steps so far and the measures of all ranks, one after the other.
    """
    windows_of_rank: Counter[int] = Counter()
    num_windows, base = 0, None
    for sample in samples:
        if base is None:
            base = sample
            continue
        if len(sample[1]) == len(base[1]) and sample[0] - base[0] < LEAST_STEPS:
            continue
        if len(sample[1]) == len(base[1]):
            num_windows += 1
            slow = _slow(_passed(base[1], sample[1]), sample[0] - base[0])
            windows_of_rank.update(each.rank for each in slow[:1])
        base = sample
    total = windows_of_rank.total()
    if len(windows_of_rank) < 2 or total < max(LEAST_WINDOWS, num_windows / 2):
        return {}
    return dict(sorted(windows_of_rank.items())) if max(windows_of_rank.values()) <= MOST_OF_ONE * total else {}


def turns(windows: Mapping[int, int]) -> str:
    """Say that ranks make the others wait in turn."""
    ranks = ", ".join(f"rank {rank} in {number}" for rank, number in windows.items())
    return f"ranks take turns in making the others wait, in {sum(windows.values())} parts of the run: {ranks}"


def _noise(own: Sequence[float], usual: float) -> float:
    """Return the standard deviation of the ranks' own times, as a part of the usual one; a few slow ranks add nothing.

    The times of less than four ranks tell nothing of it.
    """
    return 0.0 if len(own) < 4 else _DEVIATION * median(math.fabs(seconds - usual) for seconds in own) / usual


def _of_one_step(passed: Sequence[Measures], own: Sequence[float], num_steps: int) -> float:
    """Return the standard deviation of one step of the usual rank, as a part of its mean; 0 if no rank tells it."""
    deviations = [
        math.sqrt(num_steps * _variance(each, seconds, num_steps)) / seconds
        for each, seconds in zip(passed, own, strict=True)
        if "own_squares" in each and seconds > 0
    ]
    return median_low(deviations) if deviations else 0.0


def _cause(passed: Sequence[Measures], rank: int, num_steps: int, in_lines: Mapping[int, RankLines]) -> str:
    """Return what holds the rank up, or the part of the step and the line of the script that most of the excess is."""
    own = [_own(each) for each in passed]
    whole, more = own[rank] - median_low(own), own[rank] / median_low(own) - 1

    def explains(name: str) -> bool:
        return _excess(passed, rank, name) >= whole / 2

    def line_of(seconds: float, part: str | None = None) -> SlowerLine | None:
        for line in lines.slower(in_lines, rank, part=part)[:1]:
            return line if line.share * passed[rank]["step_seconds"] >= seconds / 2 else None
        return None

    slower = line_of(whole)
    held = next((cause for name, cause in _HELD.items() if explains(name)), "")
    computed = _excess(passed, rank, "core_seconds")
    if held == _HELD[CORE_WAIT] and explains(BESIDE):
        held = "waits for a core, on which its own threads run"
    if held and computed < LARGE * whole:
        return held + (f", and spends longer in {slower.words}" if slower is not None else "")
    name = max(_CAUSES, key=lambda name: _excess(passed, rank, name))
    told = [
        f"gets {_more_of(passed, rank, name) + 1:.1f} times the {noun} of the others"
        for name, noun in _INPUTS.items()
        if _more_of(passed, rank, name) >= min(more / 2, TWICE)
    ][:1]
    if explains(name):
        part, words = _CAUSES[name]
        line = line_of(_excess(passed, rank, name), part)
        slower = None if slower is not None and slower.line.part == part else slower
        words += f" in {line.words}" if line is not None else ""
        has_workers = part == frames.DATA and any(each.get(WORKERS) for each in passed)
        told.append(words + _OF_WORKERS * has_workers)
    if slower is not None:
        word = "with " if slower.line.part == frames.COLLECTING else ""
        told.append(f"spends longer {word}{lines.does(slower.line, slower.state)}")
    if explains(BESIDE) and passed[rank].get(THREADS) == 1:  # they are none of PyTorch's, but may hold Python's lock
        told.append("runs threads of its own meanwhile")
    faults = _excess(passed, rank, "major_faults") / num_steps
    if faults >= 1:
        told.append(f"reads {counted(round(faults), 'page')} of its memory from a disk in each step")
    return ", ".join(told) or _two_lines(in_lines, rank, whole / passed[rank]["step_seconds"]) or COMPUTES


def _two_lines(in_lines: Mapping[int, RankLines], rank: int, share: float) -> str:
    """Return the two lines that take longer, if this explains half: a look may see the line after a loop of Python."""
    both = lines.slower(in_lines, rank)[:2]
    is_told = sum(each.share for each in both) >= share / 2
    return "spends longer " + ", and ".join(lines.does(each.line, each.state) for each in both) if is_told else ""


def _excess(passed: Sequence[Measures], rank: int, name: str) -> float:
    return passed[rank].get(name, 0.0) - median_low([each.get(name, 0.0) for each in passed])


def _more_of(passed: Sequence[Measures], rank: int, name: str) -> float:
    """Return by which part a measure of a rank exceeds the usual one; 0 if it is not known."""
    usual = median_low([each.get(name, 0.0) for each in passed])
    return passed[rank].get(name, 0.0) / usual - 1 if usual > 0 else 0.0
