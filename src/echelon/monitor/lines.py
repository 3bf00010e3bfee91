"""In which lines of the script the ranks of a run spent their steps, and in which they are now."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median_low
from typing import Any

from echelon.node import frames
from echelon.node.line_sampler import STEPS
from echelon.units import counted

LEAST_SHARE = 0.02  # a line with less of all ranks' steps is one of the others
LARGE_SHARE = 0.2  # the share of a rank's steps from which a line has a sentence
MOST_SENTENCES = 3
COMMON = 0.5  # a line is that of every rank if the least share is so large a part of the most
WAITING = (frames.BACKWARD, frames.COMMUNICATION, frames.CHECKS)
"""Parts in whose lines fast ranks wait for slow ones: their time is known from what ranks measure, not from lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLine:
    """A line of the script, and the part of a step that it does."""

    part: str
    file: str
    number: int
    call: str = ""
    """What it calls: "time.sleep"; empty: unknown."""

    @property
    def place(self) -> str:
        """The line in a few letters: train.py:71."""
        return f"{os.path.basename(self.file)}:{self.number}" if self.file else ""

    @property
    def words(self) -> str:
        """The line with its call: train.py:71, `time.sleep`."""
        return f"{self.place}, `{self.call}`" if self.call else self.place


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLines:
    """The lines of one rank."""

    now: ScriptLine | None
    """Where it was when it was looked at last; None: in no line of the script."""
    core_wait: float
    """The seconds of the steps in which the main thread could run, and had no core."""
    steps: dict[ScriptLine, tuple[float, float]]
    """Line → the seconds of the steps in it, and those in which the main thread used a core."""

    @property
    def seconds(self) -> float:
        return sum(seconds for seconds, _ in self.steps.values())

    def share(self, line: ScriptLine) -> float:
        return self.steps[line][0] / self.seconds if line in self.steps and self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LineShare:
    """A line that takes much of the steps of a rank or of all."""

    line: ScriptLine
    mean: float
    """Its part of the steps, as a mean over the ranks."""
    most: float
    rank: int
    """The rank with the most."""
    is_common: bool
    """Whether it takes about as much on every rank."""
    state: str
    """"sleeping", "running" or empty."""


def of_attempt(kept: Mapping[str, Any], attempt: int) -> dict[int, RankLines]:
    """Return the lines of each rank of an attempt from what lines.json has; empty if echelon has not written it."""
    try:
        return _read(kept["attempts"][str(attempt)])
    except (LookupError, TypeError, ValueError, AttributeError):
        return {}


def _read(fields: Mapping[str, Any]) -> dict[int, RankLines]:
    places = [
        ScriptLine(part=part, file=file, number=int(number), call=call) for part, file, number, call in fields["places"]
    ]
    return {
        int(rank): RankLines(
            now=places[rows["now"]] if places[rows["now"]].file else None,
            core_wait=float(rows["core_wait"]),
            steps=_merged(places, rows[STEPS]),
        )
        for rank, rows in fields["ranks"].items()
    }


def _merged(places: list[ScriptLine], rows: list[list[float]]) -> dict[ScriptLine, tuple[float, float]]:
    merged: dict[ScriptLine, tuple[float, float]] = {}
    for number, seconds, on_core, *_ in rows:
        line = places[int(number)]
        before = merged.get(line, (0.0, 0.0))
        merged[line] = before[0] + seconds, before[1] + on_core
    return merged


def since(now: Mapping[int, RankLines], before: Mapping[int, RankLines]) -> dict[int, RankLines]:
    """Return what came to the lines of each rank since an earlier look at the same attempt."""
    return {rank: _since(each, before[rank]) if rank in before else each for rank, each in now.items()}


def _since(now: RankLines, before: RankLines) -> RankLines:
    earlier = {line: before.steps.get(line, (0.0, 0.0)) for line in now.steps}
    passed = {
        line: (max(0.0, seconds - earlier[line][0]), max(0.0, on_core - earlier[line][1]))
        for line, (seconds, on_core) in now.steps.items()
    }
    return replace(now, core_wait=max(0.0, now.core_wait - before.core_wait), steps=passed)


def shares(ranks: Mapping[int, RankLines]) -> list[LineShare]:
    """Return the lines that take much of the steps, the largest first; calls of one line are one."""
    whole = {rank: each.seconds for rank, each in ranks.items() if each.seconds}
    known = {rank: _by_place(ranks[rank]) for rank in whole}
    large_shares = []
    for key, line in {key: line for each in known.values() for key, (line, _) in each.items()}.items():
        of_ranks = {rank: each[key][1] if key in each else (0.0, 0.0) for rank, each in known.items()}
        parts = {rank: seconds / whole[rank] for rank, (seconds, _) in of_ranks.items()}
        rank = max(parts, key=lambda rank: parts[rank])
        if line.file and fmean(parts.values()) >= LEAST_SHARE:
            large_shares.append(
                LineShare(
                    line=line,
                    mean=fmean(parts.values()),
                    most=parts[rank],
                    rank=rank,
                    is_common=min(parts.values()) >= COMMON * parts[rank],
                    state=state(*of_ranks[rank], ranks[rank].core_wait),
                )
            )
    return sorted(large_shares, key=lambda each: -each.mean)


def _by_place(rank: RankLines) -> dict[tuple[str, str, int], tuple[ScriptLine, tuple[float, float]]]:
    """Add up the calls of each line; the one with the most time names it."""
    sums_of_line: dict[tuple[str, str, int], tuple[ScriptLine, tuple[float, float]]] = {}
    for line, (seconds, on_core) in sorted(rank.steps.items(), key=lambda row: -row[1][0]):
        key = (line.part, line.file, line.number)
        first, sums = sums_of_line.get(key, (line, (0.0, 0.0)))
        sums_of_line[key] = first, (sums[0] + seconds, sums[1] + on_core)
    return sums_of_line


def state(seconds: float, on_core: float, core_wait: float) -> str:
    """Say whether a line sleeps or runs; empty if it does both, or may have waited for a core half of the time."""
    if on_core > seconds / 2:
        return "running"
    return "sleeping" if on_core < seconds / 4 and on_core + core_wait < seconds / 2 else ""


_DOES = {
    frames.COLLECTING: "garbage collection, caused at {}",
    frames.COMPILING: "compiling, at {}",
    frames.DATA: "loading data, at {}",
    frames.OPTIMIZER: "the optimizer, at {}",
    frames.IN_BACKWARD: "inside of backward, at {}",
    frames.SAVES: "saving, at {}",
}


def does(line: ScriptLine, state: str) -> str:
    """Say what a line is: "garbage collection, caused at train.py:57, `gc.collect`"."""
    if line.part in _DOES and line.part not in (frames.DATA, frames.IN_BACKWARD):
        return _DOES[line.part].format(line.words)
    return _DOES.get(line.part, "in {}").format(line.words) + (f", {state}" if state else "")


def sentences(line_shares: Sequence[LineShare], num_ranks: int, graphs: int | None = None) -> list[str]:
    """Say which lines take much of the steps; `graphs` is the number that a rank has compiled, if it is known."""
    told = []
    for each in line_shares:
        if each.most < LARGE_SHARE or each.line.part in WAITING:
            continue
        ranks = "every rank" if each.is_common else f"rank {each.rank}"
        whose = "the steps" if num_ranks == 1 else f"{ranks}'s steps"
        share = each.mean if each.is_common else each.most
        more = f": {counted(graphs, 'graph')}" if each.line.part == frames.COMPILING and graphs else ""
        told.append(f"{share:.0%} of {whose} is {does(each.line, each.state)}{more}")
    return told[:MOST_SENTENCES]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowerLine:
    """A line that takes longer on a rank than on the others."""

    line: ScriptLine
    share: float
    """The part of the rank's steps that the others do not need there."""
    state: str

    @property
    def words(self) -> str:
        """The line, and whether it sleeps or runs."""
        return ", ".join(filter(None, (self.line.words, self.state)))


def slower(ranks: Mapping[int, RankLines], rank: int, *, part: str | None = None) -> list[SlowerLine]:
    """Return the lines, of a part of the step or of all, that take longer on a rank than on others, the worst first."""
    if rank not in ranks or len(ranks) < 2 or not ranks[rank].seconds:
        return []
    known = {number: _by_place(each) for number, each in ranks.items()}
    excess = {
        key: times[0] - median_low([each[key][1][0] if key in each else 0.0 for each in known.values()])
        for key, (line, times) in known[rank].items()
        if line.part not in WAITING and line.file and part in (None, line.part)
    }
    whole, core_wait = ranks[rank].seconds, ranks[rank].core_wait
    return [
        SlowerLine(line=known[rank][key][0], share=seconds / whole, state=state(*known[rank][key][1], core_wait))
        for key, seconds in sorted(excess.items(), key=lambda item: -item[1])
        if seconds > 0
    ]
