"""Speedup and parallel efficiency of the measured sizes, with their spread, and what limits the next size."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from echelon.estimate.speed.runs import Interval
from echelon.monitor.attempts import BEFORE, IMPORT, START
from echelon.plan import exchange
from echelon.trials.measured import MeasuredRun, parts_of, samples_per_second
from echelon.trials.prove import MOST_GAIN
from echelon.trials.question import STRONG, Question
from echelon.units import counted, step_time

ENOUGH = 0.75  # the parallel efficiency that computing centres ask for
NUM_BLOCKS = 4  # the steps of a single run are divided into so many blocks, which show the spread
CHANCE = 1.1  # a gain that exceeds the number of ranks by less may be chance


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """One size."""

    num_ranks: int
    num_nodes: int
    runs: tuple[MeasuredRun, ...]
    failure: str
    """Why the size has no numbers; empty: it has."""
    steps_per_second: Interval | None
    samples_per_second: float | None
    speedup: Interval | None
    """How many times the work of the smallest size is done in the same time."""
    efficiency: Interval | None
    """The speedup by the ranks, as a multiple of those of the smallest size."""
    doubt: str
    """Why the efficiency may be wrong; empty: no reason is known."""

    @property
    def step_seconds(self) -> float:
        """The mean time of a step after the warm-up; only for a size with numbers."""
        return 1.0 / self.steps_per_second.value if self.steps_per_second is not None else 0.0

    @property
    def best(self) -> MeasuredRun:
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


def rows(question: Question, runs: Sequence[MeasuredRun]) -> tuple[SizeRow, ...]:
    """Return a row for each size that has runs, from the smallest to the largest."""
    by_size = {number: [run for run in runs if run.num_ranks == number] for number in sorted(_numbers(runs))}
    good = [number for number, of_size in by_size.items() if not any(run.failure for run in of_size)]
    base = good[0] if good else 0
    return tuple(_row(question, of_size, by_size.get(base, []), base) for of_size in by_size.values())


def largest_enough(sizes: Sequence[SizeRow]) -> SizeRow | None:
    """Return the largest size that keeps 75 % efficiency and is not in doubt; None if no size has numbers."""
    kept = [row for row in sizes if row.efficiency is not None and row.efficiency.value >= ENOUGH and not row.doubt]
    return kept[-1] if kept else None


def _numbers(runs: Sequence[MeasuredRun]) -> set[int]:
    return {run.num_ranks for run in runs}


def _row(question: Question, runs: list[MeasuredRun], base_runs: list[MeasuredRun], base: int) -> SizeRow:
    failures = [run.failure for run in runs if run.failure]
    number = runs[0].num_ranks
    speedup = efficiency = rate = None
    if not failures:
        rate = _range(runs)
        work = question.work(number, base)
        speedup = Interval.exact(work) if number == base else _ratio(rate, _range(base_runs), work)
        efficiency = speedup.times(base / number)
    rates = [found for run in runs if run.seconds and (found := samples_per_second(run)) is not None]
    return SizeRow(
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


def _range(runs: Sequence[MeasuredRun]) -> Interval:
    """Return the middle rate of the runs, and their least and most; of a single run those of its blocks."""
    rates = [run.rate for run in runs]
    seen = rates if len(rates) > 1 else _blocks(runs[0].seconds)
    value = statistics.median(rates)
    return Interval(value=value, least=min(value, *seen), most=max(value, *seen))


def _blocks(seconds: Sequence[float]) -> list[float]:
    num_blocks = max(1, min(NUM_BLOCKS, len(seconds) // 2))
    edges = [len(seconds) * place // num_blocks for place in range(num_blocks + 1)]
    return [(edges[at + 1] - edges[at]) / sum(seconds[edges[at] : edges[at + 1]]) for at in range(num_blocks)]


def _ratio(rate: Interval, base: Interval, work: float) -> Interval:
    """Return the speedup; its range has the extremes of both rates."""
    return Interval(
        value=work * rate.value / base.value, least=work * rate.least / base.most, most=work * rate.most / base.least
    )


def _doubt(efficiency: Interval | None, number: int, base: int) -> str:
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


LARGE_SHARE = 0.1  # a part of a step that takes less does not limit it
GROWTH = 1.2  # a part grows if its share does so much
GOOD = 0.9  # an efficiency that nothing limits yet
LONG_START = 0.5
BEYOND_AMDAHL = ("cores", "devices", "start")
"""Limits that are not in the times of the steps: what the law expects of the next size would be wrong."""
LESS_EXCHANGE = ("--compress bf16", "--sync-every 100")
PARTS = {
    "communication": "would {options}more samples a step make it shorter?",
    "data": "would more workers of the DataLoader (num_workers), or data that are prepared before, help?",
}
"""The parts of a step that grow with the ranks, each with what may help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What limits the next size."""

    kind: str
    """"cores", "devices", "communication", "data", "start", "fixed part", "slower steps", "nothing", or "unknown"."""
    text: str
    next_ranks: int
    """The next size: twice the largest one."""
    next_efficiency: float | None
    """What Amdahl's law expects of it; None where the sizes do not show it, or something else limits it."""


def find(question: Question, sizes: Sequence[SizeRow]) -> Limit:
    """Return what limits the next size; the sizes that failed are left out."""
    good = [row for row in sizes if row.efficiency is not None]
    if not good or len(good) == 1:
        return Limit(kind="unknown", text="fewer than two sizes have numbers", next_ranks=0, next_efficiency=None)
    fixed, shared = amdahl(question, good)
    base, most = good[0].num_ranks, good[-1].num_ranks
    expected = None
    if question.mode == STRONG and shared:  # with weak scaling there is no such law
        expected = (fixed + shared) / (fixed + shared * base / (2 * most)) * base / (2 * most)
    rules: tuple[Callable[[], tuple[str, str]], ...] = (
        lambda: _cores(good[-1]),
        lambda: _devices(good[-1]),
        lambda: _parts(question, good),
        lambda: _start(question, good[-1]),
        lambda: _next_cores(good[-1]),
        lambda: _nothing(good[-1]),
        lambda: _fixed(question, good, fixed),
    )
    kind, text = next(told for rule in rules if (told := rule())[0])
    return Limit(kind=kind, text=text, next_ranks=2 * most, next_efficiency=None if kind in BEYOND_AMDAHL else expected)


def amdahl(question: Question, good: Sequence[SizeRow]) -> tuple[float, float]:
    """Return the seconds of a step that stay, and those that ranks share, of a step on the smallest size.

    Least squares over the sizes: with the same global batch, a step takes `fixed + shared * base / ranks`; with the
    same batch for each rank, the seconds that stay are what the largest size takes more than the smallest.
    """
    base = good[0].num_ranks
    seconds = [row.step_seconds for row in good]
    if question.mode != STRONG:
        more = max(0.0, seconds[-1] - seconds[0])
        return more, seconds[0]
    inverse = [base / row.num_ranks for row in good]
    shared = max(0.0, statistics.linear_regression(inverse, seconds).slope)
    return max(0.0, statistics.fmean(seconds) - shared * statistics.fmean(inverse)), shared


def _cores(row: SizeRow) -> tuple[str, str]:
    per_node, num_cores = _cores_of_node(row)
    if per_node <= num_cores or not num_cores:
        return "", ""
    cores = counted(num_cores, "core")
    return "cores", f"{counted(per_node, 'rank')} share {cores} of a node: they already take turns"


def _next_cores(row: SizeRow) -> tuple[str, str]:
    """Say that there are no cores for twice as many ranks, where these ranks are fast enough."""
    per_node, num_cores = _cores_of_node(row)
    is_good = row.efficiency is not None and row.efficiency.value >= ENOUGH
    if 2 * per_node <= num_cores or not num_cores or not is_good:
        return "", ""
    cores = counted(num_cores, "core")
    return (
        "cores",
        f"{counted(per_node, 'rank')} have {cores} of a node: twice as many would share them; use more nodes",
    )


def _cores_of_node(row: SizeRow) -> tuple[int, int]:
    """Return the ranks of a node, and its cores; 0 cores if they are unknown, or if the node has devices."""
    run = row.best
    return -(-row.num_ranks // max(1, row.num_nodes)), 0 if run.num_devices else run.num_cores


def _devices(row: SizeRow) -> tuple[str, str]:
    per_node = -(-row.num_ranks // max(1, row.num_nodes))
    devices = row.best.num_devices // max(1, row.num_nodes)
    if not devices or per_node <= devices:
        return "", ""
    return "devices", f"{counted(per_node, 'rank')} share {counted(devices, 'device')} of a node: they take turns"


def _parts(question: Question, good: Sequence[SizeRow]) -> tuple[str, str]:
    """Return the part that takes most of a step, of those that grow with the ranks."""
    first, last = good[0], good[-1]
    grown = {
        name: last.parts.get(name, 0.0)
        for name in PARTS
        if last.parts.get(name, 0.0) >= max(LARGE_SHARE, GROWTH * first.parts.get(name, 0.0))
    }
    if not grown:
        return "", ""
    name = max(grown, key=lambda part: grown[part])
    before = f"{first.parts.get(name, 0.0):.0%} on {first.num_ranks}"
    words = " ".join(question.options).split(" --")
    options = [] if question.is_own else [more for more in LESS_EXCHANGE if exchange.accepts_with(words, more)]
    what_may_help = PARTS[name].format(options="".join(f"{more} or " for more in options))
    return name, f"{name} takes {grown[name]:.0%} of a step on {last.num_ranks} ranks ({before}): {what_may_help}"


def _start(question: Question, row: SizeRow) -> tuple[str, str]:
    """Return the start where it takes most of a run that was not cut."""
    account = row.best.account
    if account is None or question.num_steps or question.timeout or not account.seconds:
        return "", ""
    share = sum(account.share(phase) for phase in (IMPORT, START, BEFORE))
    if share < LONG_START:
        return "", ""
    return "start", f"{share:.0%} of the run on {counted(row.num_ranks, 'rank')} was its start: train for longer"


def _nothing(row: SizeRow) -> tuple[str, str]:
    if row.efficiency is None or row.efficiency.value < GOOD:
        return "", ""
    return "nothing", f"nothing yet: {row.efficiency.value:.0%} efficiency on {counted(row.num_ranks, 'rank')}"


def _fixed(question: Question, good: Sequence[SizeRow], fixed: float) -> tuple[str, str]:
    first, last = good[0], good[-1]
    if question.mode == STRONG:
        return "fixed part", (
            f"{step_time(fixed)} of a step do not shrink with the ranks, of {step_time(first.step_seconds)} on "
            f"{counted(first.num_ranks, 'rank')}: the exchange, and what each rank does again; use a larger batch"
        )
    return "slower steps", (
        f"a step with the same batch for each rank takes {step_time(last.step_seconds)} on {last.num_ranks} ranks, and "
        f"{step_time(first.step_seconds)} on {first.num_ranks}: the exchange, or what ranks of a node share"
    )


def sentence(limit: Limit) -> str:
    """Return the limit in words, with what Amdahl's law expects of the next size."""
    if limit.next_efficiency is None:
        return limit.text
    enough = "" if limit.next_efficiency >= ENOUGH else f", less than {ENOUGH:.0%}"
    end = "" if limit.text.endswith("?") else "."
    return (
        f"{limit.text}{end} Amdahl's law expects {limit.next_efficiency:.0%} efficiency of "
        f"{counted(limit.next_ranks, 'rank')}{enough}"
    )
