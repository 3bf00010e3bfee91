"""Write what a scaling benchmark found: a table, the limit, and the paragraph for an application for computing time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from echelon import __version__
from echelon.trials.efficiency import ENOUGH, SizeRow, find, largest_enough, sentence
from echelon.trials.measured import parts_of
from echelon.trials.question import STRONG, Question
from echelon.units import aligned, amount, counted, duration, rate, step_time

NUM_ASKED = 3  # computing centres ask for so many sizes
HEAD = ("ranks", "nodes", "a step", "steps/s", "samples/s", "speedup", "efficiency", "range")


def text(question: Question, sizes: Sequence[SizeRow]) -> str:
    good = [row for row in sizes if row.efficiency is not None]
    lines = [question.title, *_aligned([HEAD, *(_cells(row) for row in sizes)], sizes)]
    if good:
        lines += ["", _what_range(question, sizes)]
    lines += [f"{counted(row.num_ranks, 'rank')}: {row.doubt}" for row in sizes if row.doubt]
    if good:
        lines += ["", "time by phase", *_phases(good)]
    if len(good) > 1:
        lines += ["", f"limit     {sentence(find(question, sizes))}", f"enough    {_enough(sizes)}"]
        lines += ["", "To paste into an application for computing time:", "", paragraph(question, sizes)]
    return "\n".join(lines) + "\n"


def paragraph(question: Question, sizes: Sequence[SizeRow]) -> str:
    """Return the paragraph that computing centres ask for: sizes, same input, speedup, efficiency, utilisation."""
    good = [row for row in sizes if row.efficiency is not None and row.speedup is not None]
    base = good[0]
    same = "the same input and the same global batch" if question.mode == STRONG else "the same batch for each rank"
    cut = f", {question.num_steps} optimizer steps each" if question.num_steps else ""
    runs = f" Each size was run {question.num_repeats} times." if question.num_repeats > 1 else ""
    measured = "; ".join(_sentence_part(row) for row in good)
    kept = largest_enough(sizes)
    lines = [
        f"We measured the {question.mode} scaling of {question.script} with {same}{cut}; the first {question.warm_up} "
        f"steps did not count (echelon {__version__}).{runs} {measured[0].upper()}{measured[1:]}. "
        f"Speedup and efficiency are relative to {counted(base.num_ranks, 'rank')}.",
        _utilisation(good),
        f"The largest measured size with an efficiency of at least {ENOUGH:.0%} is {counted(kept.num_ranks, 'rank')}."
        if kept is not None
        else "",
    ]
    failed = [row for row in sizes if row.failure]
    lines += [f"{counted(row.num_ranks, 'rank')} gave no result: {row.failure}." for row in failed]
    if len(good) < NUM_ASKED:
        lines.append(f"(Centres ask for at least {NUM_ASKED} sizes; this benchmark has {len(good)}.)")
    return " ".join(line for line in lines if line)


def as_plain(question: Question, sizes: Sequence[SizeRow]) -> dict[str, Any]:
    limit = find(question, sizes)
    kept = largest_enough(sizes)
    num_good = sum(row.efficiency is not None for row in sizes)
    return {
        "format": 1,
        "script": question.script,
        "mode": question.mode,
        "steps": question.num_steps,
        "warm_up": question.warm_up,
        "repeats": question.num_repeats,
        "sizes": [_plain(row) for row in sizes],
        "limit": {
            "kind": limit.kind,
            "text": limit.text,
            "next_ranks": limit.next_ranks,
            "next_efficiency": limit.next_efficiency,
        },
        "largest_with_75_percent": kept.num_ranks if kept is not None else None,
        "paragraph": paragraph(question, sizes) if num_good > 1 else "",
    }


def _plain(row: SizeRow) -> dict[str, Any]:
    account = row.best.account
    return {
        "ranks": row.num_ranks,
        "nodes": row.num_nodes,
        "runs": len(row.runs),
        "failure": row.failure,
        "steps": sum(len(run.seconds) for run in row.runs),
        "steps_per_second": row.steps_per_second and asdict(row.steps_per_second),
        "samples_per_second": row.samples_per_second,
        "speedup": row.speedup and asdict(row.speedup),
        "efficiency": row.efficiency and asdict(row.efficiency),
        "doubt": row.doubt,
        "utilisation_percent": row.utilisation,
        "phases": {phase.name: phase.seconds for phase in account.phases} if account is not None else {},
        "parts": parts_of(account),
    }


def _cells(row: SizeRow) -> tuple[str, ...]:
    nodes = str(row.num_nodes or "–")
    if row.steps_per_second is None or row.speedup is None or row.efficiency is None:
        return (str(row.num_ranks), nodes, "", "", "", "", "", "")
    least, most = row.efficiency.least, row.efficiency.most
    return (
        str(row.num_ranks),
        nodes,
        step_time(row.step_seconds),
        amount(row.steps_per_second.value),
        rate(row.samples_per_second) if row.samples_per_second is not None else "–",
        f"{row.speedup.value:.2f}",
        f"{row.efficiency.value:.0%}" + (" ?" if row.doubt else ""),
        f"{least:.0%} to {most:.0%}" if least != most else "–",
    )


def _aligned(table: Sequence[Sequence[str]], sizes: Sequence[SizeRow]) -> list[str]:
    """Return the lines of the table; a size without numbers has its reason in place of them."""
    lines, sides = aligned(table, to_right=True), aligned([cells[:2] for cells in table], to_right=True)
    for place, row in enumerate(sizes, start=1):
        if row.failure:
            lines[place] = f"{sides[place]}  {row.failure}"
    return lines


def _what_range(question: Question, sizes: Sequence[SizeRow]) -> str:
    base = next(row for row in sizes if row.efficiency is not None)
    of = (
        f"of the {question.num_repeats} runs of each size"
        if question.num_repeats > 1
        else "of four equal parts of the steps of one run"
    )
    warm = f"the first {question.warm_up} steps do not count" if question.warm_up else "all steps count"
    return f"relative to {counted(base.num_ranks, 'rank')}; the range has the least and the greatest {of}; {warm}"


def _phases(good: Sequence[SizeRow]) -> list[str]:
    """Return the seconds of each phase, and the shares of the parts of the steps, beside the sizes."""
    accounts = [(row, row.best.account) for row in good if row.best.account is not None]
    names = list(dict.fromkeys(phase.name for _, account in accounts for phase in account.phases))
    rows = [("", [counted(row.num_ranks, "rank") for row, _ in accounts])]
    for name in names:
        cells = [step_time(account.seconds_of(name)) if account.seconds_of(name) else "–" for _, account in accounts]
        rows.append((name, cells))
    for part in dict.fromkeys(name for row, _ in accounts for name in row.parts):
        cells = [f"{row.parts[part]:.0%}" if part in row.parts else "–" for row, _ in accounts]
        rows.append((f"  of the steps: {part}", cells))
    width = max(len(label) for label, _ in rows)
    return [f"{label:<{width}}" + "".join(f"{cell:>12}" for cell in cells) for label, cells in rows]


def _enough(sizes: Sequence[SizeRow]) -> str:
    kept = largest_enough(sizes)
    if kept is None or kept.efficiency is None:
        return f"no size keeps {ENOUGH:.0%}"
    return f"{counted(kept.num_ranks, 'rank')}: the largest measured size that keeps {ENOUGH:.0%} ({_percent(kept)})"


def _percent(row: SizeRow) -> str:
    return f"{row.efficiency.value:.0%}" if row.efficiency is not None else ""


def _sentence_part(row: SizeRow) -> str:
    return of_size(
        row.num_ranks,
        num_nodes=row.num_nodes,
        step_seconds=row.step_seconds,
        samples_per_second=row.samples_per_second,
        speedup=row.speedup.value if row.speedup is not None else 0.0,
        efficiency=row.efficiency.value if row.efficiency is not None else 0.0,
    )


def of_size(
    num_ranks: int,
    *,
    num_nodes: int,
    step_seconds: float,
    samples_per_second: float | None,
    speedup: float,
    efficiency: float,
) -> str:
    """Return the part of a sentence about a measured size; 0 nodes are unknown ones."""
    nodes = f" ({counted(num_nodes, 'node')})" if num_nodes else ""
    trained = f" and {rate(samples_per_second)} samples a second were trained" if samples_per_second else ""
    return (
        f"on {counted(num_ranks, 'rank')}{nodes}, a step took {step_time(step_seconds)}{trained}: speedup "
        f"{speedup:.2f}, efficiency {efficiency:.0%}"
    )


def _utilisation(good: Sequence[SizeRow]) -> str:
    known = [(row, row.utilisation) for row in good if row.utilisation is not None]
    if not known:
        return "The load of devices was not measured: the runs had none, or were shorter than a minute."
    told = ", ".join(f"{load:.0f} % on {counted(row.num_ranks, 'rank')}" for row, load in known)
    return f"The devices were busy {told} of the time."


def described(row: SizeRow) -> str:
    """Return how long a size took, for the line that is printed after its run."""
    account = row.best.account
    return f"{row.failure or step_time(row.step_seconds)} ({duration(account.seconds if account is not None else 0.0)})"
