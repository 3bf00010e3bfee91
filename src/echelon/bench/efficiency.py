"""Speedup and parallel efficiency of the measured sizes, with their spread."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from echelon.bench.measured import Measured, parts_of, samples_per_second
from echelon.bench.question import Question
from echelon.launch.prove import MOST_GAIN

ENOUGH = 0.75
"""The parallel efficiency that computing centres ask for."""
NUM_BLOCKS = 4
"""The steps of a single run are divided into so many blocks, which show the spread."""
CHANCE = 1.1
"""A gain that exceeds the number of ranks by less may be chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A value with the least and the greatest that were seen."""

    value: float
    least: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size."""

    num_ranks: int
    num_nodes: int
    runs: tuple[Measured, ...]
    failure: str
    """Why the size has no numbers; empty: it has."""
    steps_per_second: Range | None
    samples_per_second: float | None
    speedup: Range | None
    """How many times the work of the smallest size is done in the same time."""
    efficiency: Range | None
    """The speedup by the ranks, as a multiple of those of the smallest size."""
    doubt: str
    """Why the efficiency may be wrong; empty: no reason is known."""

    @property
    def step_seconds(self) -> float:
        """The mean time of a step after the warm-up; only for a size with numbers."""
        return 1.0 / self.steps_per_second.value if self.steps_per_second is not None else 0.0

    @property
    def best(self) -> Measured:
        """Return the run of the middle rate, or the first where none has a rate."""
        timed = sorted((run for run in self.runs if run.seconds), key=lambda run: run.rate)
        return timed[len(timed) // 2] if timed else self.runs[0]

    @property
    def parts(self) -> dict[str, float]:
        """Return the shares of the steps' time by part; empty where they are unknown."""
        parts = parts_of(self.best.account)
        whole = sum(parts.values())
        return {name: seconds / whole for name, seconds in parts.items()} if whole else {}

    @property
    def utilisation(self) -> float | None:
        """The mean load of the devices in per cent; None where it was not seen."""
        loads = [run.utilisation for run in self.runs if run.utilisation is not None]
        return statistics.mean(loads) if loads else None


def rows(question: Question, runs: Sequence[Measured]) -> tuple[Row, ...]:
    """Return a row for each size that has runs, from the smallest to the largest."""
    by_size = {number: [run for run in runs if run.num_ranks == number] for number in sorted(_numbers(runs))}
    good = [number for number, of_size in by_size.items() if not any(run.failure for run in of_size)]
    base = good[0] if good else 0
    return tuple(_row(question, of_size, by_size.get(base, []), base) for of_size in by_size.values())


def largest_enough(sizes: Sequence[Row]) -> Row | None:
    """Return the largest size that keeps 75 % efficiency and is not in doubt; None if no size has numbers."""
    kept = [row for row in sizes if row.efficiency is not None and row.efficiency.value >= ENOUGH and not row.doubt]
    return kept[-1] if kept else None


def _numbers(runs: Sequence[Measured]) -> set[int]:
    return {run.num_ranks for run in runs}


def _row(question: Question, runs: list[Measured], base_runs: list[Measured], base: int) -> Row:
    failures = [run.failure for run in runs if run.failure]
    number = runs[0].num_ranks
    speedup = efficiency = rate = None
    if not failures:
        rate = _range(runs)
        work = question.work(number, base)
        speedup = Range(value=work, least=work, most=work) if number == base else _ratio(rate, _range(base_runs), work)
        factor = base / number
        efficiency = Range(value=speedup.value * factor, least=speedup.least * factor, most=speedup.most * factor)
    rates = [found for run in runs if run.seconds and (found := samples_per_second(run)) is not None]
    return Row(
        num_ranks=number,
        num_nodes=max(run.num_nodes for run in runs),
        runs=tuple(runs),
        failure=failures[0] if failures else "",
        steps_per_second=rate,
        samples_per_second=statistics.median(rates) if rates and not failures else None,
        speedup=speedup,
        efficiency=efficiency,
        doubt=_doubt(efficiency, number, base),
    )


def _range(runs: Sequence[Measured]) -> Range:
    """Return the middle rate of the runs, and their least and most; of a single run those of its blocks."""
    rates = [run.rate for run in runs]
    seen = rates if len(rates) > 1 else _blocks(runs[0].seconds)
    value = statistics.median(rates)
    return Range(value=value, least=min(value, *seen), most=max(value, *seen))


def _blocks(seconds: Sequence[float]) -> list[float]:
    """Return the rates of consecutive blocks of steps."""
    num_blocks = max(1, min(NUM_BLOCKS, len(seconds) // 2))
    edges = [len(seconds) * place // num_blocks for place in range(num_blocks + 1)]
    return [(edges[at + 1] - edges[at]) / sum(seconds[edges[at] : edges[at + 1]]) for at in range(num_blocks)]


def _ratio(rate: Range, base: Range, work: float) -> Range:
    """Return the speedup; its range has the extremes of both rates."""
    return Range(
        value=work * rate.value / base.value, least=work * rate.least / base.most, most=work * rate.most / base.least
    )


def _doubt(efficiency: Range | None, number: int, base: int) -> str:
    if efficiency is None or efficiency.least <= CHANCE:
        return ""
    if efficiency.least > MOST_GAIN:
        return (
            f"{number} ranks cannot explain a speedup of {efficiency.value * number / base:.1f}: other work may have "
            f"disturbed the run on {base}"
        )
    return (
        f"the speedup is larger than {number / base:g}: a rank's part of a batch may fit into a cache, or other work "
        f"disturbed the run on {base}"
    )
