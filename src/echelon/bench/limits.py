"""Say what limits the next size, and why: cores, devices, exchange, data, the start, or what does not shrink."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from echelon.bench.efficiency import ENOUGH, Row
from echelon.bench.question import STRONG, Question
from echelon.monitor.phases import BEFORE, IMPORT, START
from echelon.plan import exchange
from echelon.units import counted, step_time

LARGE_SHARE = 0.1
"""A part of a step that takes less does not limit it."""
GROWTH = 1.2
"""A part grows if its share does so much."""
GOOD = 0.9
"""An efficiency that nothing limits yet."""
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


def find(question: Question, sizes: Sequence[Row]) -> Limit:
    """Return what limits the next size; the sizes that failed are left out."""
    good = [row for row in sizes if row.efficiency is not None]
    if not good or len(good) == 1:
        return Limit(kind="unknown", text="fewer than two sizes have numbers", next_ranks=0, next_efficiency=None)
    fixed, shared = amdahl(question, good)
    most = good[-1].num_ranks
    expected = _expected(question, good[0].num_ranks, 2 * most, fixed, shared)
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


def amdahl(question: Question, good: Sequence[Row]) -> tuple[float, float]:
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
    mean_x, mean_y = sum(inverse) / len(good), sum(seconds) / len(good)
    above = sum((x - mean_x) * (y - mean_y) for x, y in zip(inverse, seconds, strict=True))
    below = sum((x - mean_x) ** 2 for x in inverse)
    shared = max(0.0, above / below)
    return max(0.0, mean_y - shared * mean_x), shared


def _expected(question: Question, base: int, ranks: int, fixed: float, shared: float) -> float | None:
    """Return the efficiency of a size by Amdahl's law; None with weak scaling, where it has no such law."""
    if question.mode != STRONG or not shared:
        return None
    return (fixed + shared) / (fixed + shared * base / ranks) * base / ranks


def _cores(row: Row) -> tuple[str, str]:
    per_node, num_cores = _cores_of_node(row)
    if per_node <= num_cores or not num_cores:
        return "", ""
    cores = counted(num_cores, "core")
    return "cores", f"{counted(per_node, 'rank')} share {cores} of a node: they already take turns"


def _next_cores(row: Row) -> tuple[str, str]:
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


def _cores_of_node(row: Row) -> tuple[int, int]:
    """Return the ranks of a node, and its cores; 0 cores if they are unknown, or if the node has devices."""
    run = row.best
    return -(-row.num_ranks // max(1, row.num_nodes)), 0 if run.num_devices else run.num_cores


def _devices(row: Row) -> tuple[str, str]:
    per_node = -(-row.num_ranks // max(1, row.num_nodes))
    devices = row.best.num_devices // max(1, row.num_nodes)
    if not devices or per_node <= devices:
        return "", ""
    return "devices", f"{counted(per_node, 'rank')} share {counted(devices, 'device')} of a node: they take turns"


def _parts(question: Question, good: Sequence[Row]) -> tuple[str, str]:
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
    what_may_help = PARTS[name].format(options=_less_exchange(question))
    return name, f"{name} takes {grown[name]:.0%} of a step on {last.num_ranks} ranks ({before}): {what_may_help}"


def _less_exchange(question: Question) -> str:
    """Return the options that the measured runs would accept: "--compress bf16 or "."""
    words = " ".join(question.options).split(" --")
    options = [] if question.is_own else [more for more in LESS_EXCHANGE if exchange.accepts_with(words, more)]
    return "".join(f"{more} or " for more in options)


def _start(question: Question, row: Row) -> tuple[str, str]:
    """Return the start where it takes most of a run that was not cut."""
    account = row.best.account
    if account is None or question.num_steps or question.timeout or not account.seconds:
        return "", ""
    share = sum(account.share(phase) for phase in (IMPORT, START, BEFORE))
    if share < LONG_START:
        return "", ""
    return "start", f"{share:.0%} of the run on {counted(row.num_ranks, 'rank')} was its start: train for longer"


def _nothing(row: Row) -> tuple[str, str]:
    if row.efficiency is None or row.efficiency.value < GOOD:
        return "", ""
    return "nothing", f"nothing yet: {row.efficiency.value:.0%} efficiency on {counted(row.num_ranks, 'rank')}"


def _fixed(question: Question, good: Sequence[Row], fixed: float) -> tuple[str, str]:
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
