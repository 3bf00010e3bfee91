"""The page of one run, or of two side by side."""

from __future__ import annotations

import linecache
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Any

from echelon.monitor import attempts, report
from echelon.monitor.account import Account
from echelon.monitor.costs import Costs
from echelon.monitor.page import plots
from echelon.monitor.recorded import Recorded
from echelon.monitor.training import PARTS, REST
from echelon.node.pulse import seconds_of
from echelon.units import amount, counted, step_time

STYLE = (
    plots.STYLE
    + """
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--card); margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem } p { max-width: 60rem }
.runs { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 1rem 2.5rem }
pre { overflow-x: auto; font: 12.5px/1.45 ui-monospace, monospace; border: 1px solid var(--rule); padding: .7rem;
  border-radius: 6px; white-space: pre-wrap }
.findings { list-style: none; padding: 0; margin: 0; max-width: 60rem }
.findings li { display: grid; grid-template-columns: 6rem 1fr; margin: .3rem 0; overflow-wrap: anywhere }
.findings strong { font-weight: 600 } .findings pre { grid-column: 2; margin: .3rem 0; min-width: 0 }
svg { width: 100%; height: auto }
@media (max-width: 40rem) { pre { white-space: pre } }
"""
)
MOST_EFFICIENCY = 1.2
SLOW, LEAST_SPANS, MOST_ROWS = 1.5, 4, 8
"""Steps are drawn by rank if they took so many times the median, of so many spans between samples; and the ranks."""
DOUBT = " More ranks do not explain this: another program slowed the run with fewer ranks, or its memory was too small."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStory:
    """A run with all that the page says of it."""

    name: str
    state: str
    recorded: Recorded
    account: Account
    advice: list[str]
    costs: Costs


def page(runs: Sequence[RunStory]) -> str:
    """Return the HTML of one run, or of two with their curves in the same plots."""
    title = " and ".join(run.name for run in runs)
    parts = [f"<h1>{escape(title)}</h1>"]
    if len(runs) > 1:
        keys = plots.legend([(f"s{number}", escape(run.name)) for number, run in enumerate(runs)])
        parts.append(keys + _compared(runs))
    parts.append(_side_by_side("What was found", [_findings(run) for run in runs]))
    drawn = [f"<div><h2>{escape(heading)}</h2>{plot}</div>" for heading, plot in _plots(runs) if plot]
    parts.append(f'<div class="runs">{"".join(drawn)}</div>')
    parts.append(_side_by_side("Where the time went", [_phases(run) for run in runs]))
    parts.append(_side_by_side("What a step was made of", [_parts(run) for run in runs]))
    parts.append(_side_by_side("The slowest steps", [_slowest(run) for run in runs]))
    parts.append(_side_by_side("The report", [_text(run) for run in runs]))
    parts.append(_side_by_side("For an application for more hours", [_paragraph(run) for run in runs]))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _compared(runs: Sequence[RunStory]) -> str:
    """Say how much faster the run with more ranks was, and what part of its ranks that is."""
    few, many = sorted(runs, key=lambda run: run.account.num_ranks)
    rates = [_rate(few.account), _rate(many.account)]
    if not (all(rates) and few.account.num_ranks):
        return ""
    speedup = rates[1] / rates[0]
    efficiency = speedup * few.account.num_ranks / many.account.num_ranks
    return (
        f"<p>{_ranks(many)} was {amount(speedup)} times as fast as {_ranks(few)}: a parallel "
        f"efficiency of {efficiency:.0%}.{DOUBT if efficiency > MOST_EFFICIENCY else ''}</p>"
    )


def _ranks(run: RunStory) -> str:
    return f"{escape(run.name)} with {counted(run.account.num_ranks, 'rank')}"


def _rate(account: Account) -> float:
    if account.training is not None and account.training.samples_per_second:
        return account.training.samples_per_second
    return account.steps.per_second if account.steps is not None else 0.0


def _plots(runs: Sequence[RunStory]) -> list[tuple[str, str]]:
    names = [run.name for run in runs]
    losses = [_losses(run) for run in runs]
    rates = [_pace(run) for run in runs]
    times = [_times(run.account) for run in runs]
    return [
        ("Loss", plots.curves(list(zip(names, losses, strict=True)), x="step", y="loss")),
        ("Speed", plots.curves(list(zip(names, rates, strict=True)), x="minutes of the steps", y="steps a second")),
        ("How long steps took", plots.histogram(list(zip(names, times, strict=True)), x="time of a step")),
    ]


def _samples(run: RunStory) -> list[dict[str, Any]]:
    return [line for line in run.recorded.samples if "steps" in line]


def _losses(run: RunStory) -> list[plots.Point]:
    """Return the losses by their step in the training: an attempt that goes on from a checkpoint counts from there."""
    begins = {attempt.number: attempt.continued_after for attempt in run.account.attempts}
    return [
        (begins.get(line.get("attempt", 0), 0) + _step(line), float(line["loss"]))
        for line in _samples(run)
        if "loss" in line
    ]


def _step(line: dict[str, Any]) -> float:
    return float(max(attempts.steps_of(line)))


def _pace(run: RunStory) -> list[plots.Point]:
    """Return the steps a second over the minutes of the steps, by the steps' own times.

    A step that takes longer than the time between two samples is one span, and not a zero and a one.
    """
    points, begun = list[plots.Point](), 0.0
    for before, line in _spans(_samples(run)):
        passed = _seconds(line) - _seconds(before)
        if passed > 0:
            begun += passed
            points.append((begun / 60, (_step(line) - _step(before)) / passed))
    return points


def _spans(samples: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the neighbours among samples of one attempt between which steps ended and were timed."""
    kept = [line for line in samples if line.get("measures", {}).get("step_seconds") is not None] or samples
    before: dict[str, Any] | None = None
    for line in kept:
        if before is not None and before.get("attempt") == line.get("attempt"):
            if _step(line) <= _step(before):
                continue
            yield before, line
        before = line


def _seconds(line: dict[str, Any]) -> float:
    """Return the end of the newest step: after the first one, or without measures the time of the sample."""
    seconds = line.get("measures", {}).get("step_seconds")
    known = [each for each in (seconds if isinstance(seconds, list) else [seconds]) if each is not None]
    return max(map(float, known), default=float(line["time"]))


def _slowest(run: RunStory) -> str:
    """Draw what the ranks did in the slowest steps, and before and after them."""
    spans = [pair for pair in _spans(_samples(run)) if "measures" in pair[0] and "measures" in pair[1]]
    paces = [(_seconds(line) - _seconds(before)) / (_step(line) - _step(before)) for before, line in spans]
    if len(spans) < LEAST_SPANS or max(paces) < SLOW * median(paces):
        return ""
    at = paces.index(max(paces))
    shown = [(attempts.of_ranks(before), attempts.of_ranks(line)) for before, line in spans[max(0, at - 1) : at + 2]]
    num_ranks = min(MOST_ROWS, *(len(ranks) for pair in shown for ranks in pair))
    rows = [
        (f"rank {rank}", [_parts_between(before[rank], line[rank]) for before, line in shown])
        for rank in range(num_ranks)
    ]
    first, last = (_step(line) for line in spans[at])
    told = (
        f"<p>Steps {first + 1:.0f} to {last:.0f} took {step_time(paces[at])} each, and {step_time(median(paces))} is "
        "usual; the marks separate them from the steps before and after.</p>"
    )
    return told + plots.timeline(rows, names=(*PARTS, REST))


def _parts_between(before: dict[str, float], now: dict[str, float]) -> list[tuple[str, float]]:
    parts = [(part, max(0.0, now.get(name, 0.0) - before.get(name, 0.0))) for part, name in PARTS.items()]
    whole = now.get("step_seconds", 0.0) - before.get("step_seconds", 0.0)
    return [*parts, (REST, max(0.0, whole - sum(seconds for _, seconds in parts)))]


def _times(account: Account) -> list[plots.Point]:
    counts: Counter[int] = Counter()
    for attempt in account.attempts:
        counts.update(attempt.step_times)
    return [(seconds_of(bucket), float(count)) for bucket, count in sorted(counts.items())]


def _side_by_side(heading: str, parts: list[str]) -> str:
    if not any(parts):
        return ""
    return f'<h2>{escape(heading)}</h2><div class="runs">{"".join(f"<div>{part}</div>" for part in parts)}</div>'


def _phases(run: RunStory) -> str:
    shown = [(phase.name, phase.seconds) for phase in run.account.phases]
    return plots.bar(shown, names=attempts.ORDER, label=f"phases of {run.name}")


def _parts(run: RunStory) -> str:
    training = run.account.training
    if training is None:
        return ""
    return plots.bar(list(training.parts.items()), names=(*PARTS, REST), label=f"parts of a step of {run.name}")


def _findings(run: RunStory) -> str:
    """Say in sentences what was found, and show the text of the line that takes most of the steps."""
    told = ""
    for word, sentences in report.findings(run.recorded, run.account, run.advice):
        for index, sentence in enumerate(sentences):
            code = _code(run) if word == "where" and not index else ""
            told += f"<li><strong>{escape(word)}</strong> {escape(sentence)}{code}</li>"
    return f'<ul class="findings">{told}</ul>' if told else ""


def _code(run: RunStory) -> str:
    """Return the text of the worst line, if its file is here and has not been changed since the run began."""
    line = run.account.lines[0].line
    began = float(run.recorded.events[0]["time"]) if run.recorded.events else 0.0
    try:
        is_same = os.stat(line.file).st_mtime <= began
    except OSError:
        return ""
    text = linecache.getline(line.file, line.number).strip()
    return f"<pre>{escape(f'{line.place}: {text}')}</pre>" if is_same and text else ""


def _text(run: RunStory) -> str:
    costs = run.costs.sentences
    text = report.text(run.name, run.state, run.recorded, run.account, run.advice, costs=costs, has_findings=False)
    return f"<pre>{escape(text)}</pre>"


def _paragraph(run: RunStory) -> str:
    return f"<p>{escape(report.paragraph_of_run(run.recorded, run.account))}</p>"
