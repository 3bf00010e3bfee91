"""The page of one run, or of two side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

from echelon.monitor import attempts, report
from echelon.monitor.account import Account
from echelon.monitor.page import plots
from echelon.monitor.recorded import Recorded
from echelon.monitor.training import PARTS, REST
from echelon.node.pulse import seconds_of
from echelon.units import amount, counted

STYLE = (
    plots.STYLE
    + """
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--card); margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem } p { max-width: 60rem }
.runs { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); gap: 1rem 2.5rem }
pre { overflow-x: auto; font: 12.5px/1.45 ui-monospace, monospace; border: 1px solid var(--rule); padding: .7rem;
  border-radius: 6px; white-space: pre-wrap }
svg { width: 100%; height: auto }
"""
)
MOST_EFFICIENCY = 1.2
DOUBT = " More ranks do not explain this: another program slowed the run with fewer ranks, or its memory was too small."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStory:
    """A run with all that the page says of it."""

    name: str
    state: str
    recorded: Recorded
    account: Account
    advice: list[str]


def page(runs: Sequence[RunStory]) -> str:
    """Return the HTML of one run, or of two with their curves in the same plots."""
    title = " and ".join(run.name for run in runs)
    parts = [f"<h1>{escape(title)}</h1>"]
    if len(runs) > 1:
        keys = plots.legend([(f"s{number}", escape(run.name)) for number, run in enumerate(runs)])
        parts.append(keys + _compared(runs))
    drawn = [f"<div><h2>{escape(heading)}</h2>{plot}</div>" for heading, plot in _plots(runs) if plot]
    parts.append(f'<div class="runs">{"".join(drawn)}</div>')
    parts.append(_side_by_side("Where the time went", [_phases(run) for run in runs]))
    parts.append(_side_by_side("What a step was made of", [_parts(run) for run in runs]))
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
    number = run.account.num_ranks
    return f"{escape(run.name)} with {counted(number, 'rank')}"


def _rate(account: Account) -> float:
    if account.training is not None and account.training.samples_per_second:
        return account.training.samples_per_second
    return account.steps.per_second if account.steps is not None else 0.0


def _plots(runs: Sequence[RunStory]) -> list[tuple[str, str]]:
    samples = [[line for line in run.recorded.samples if "steps" in line] for run in runs]
    names = [run.name for run in runs]
    losses = [[(_step(line), float(line["loss"])) for line in lines if "loss" in line] for lines in samples]
    rates = [_pace(lines) for lines in samples]
    times = [_times(run.account) for run in runs]
    return [
        ("Loss", plots.curves(list(zip(names, losses, strict=True)), x="step", y="loss")),
        ("Speed", plots.curves(list(zip(names, rates, strict=True)), x="minutes", y="steps a second")),
        ("How long steps took", plots.histogram(list(zip(names, times, strict=True)), x="seconds")),
    ]


def _step(line: dict[str, Any]) -> float:
    steps = line["steps"]
    return float(max(steps) if isinstance(steps, list) else steps)


def _pace(lines: list[dict[str, Any]]) -> list[plots.Point]:
    """Return the steps a second between samples, over the minutes since the first."""
    points = []
    for before, line in pairwise(lines):
        passed = float(line["time"]) - float(before["time"])
        if passed > 0 and before.get("attempt") == line.get("attempt"):
            minutes = (float(line["time"]) - float(lines[0]["time"])) / 60
            points.append((minutes, (_step(line) - _step(before)) / passed))
    return points


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


def _text(run: RunStory) -> str:
    return f"<pre>{escape(report.text(run.name, run.state, run.recorded, run.account, run.advice))}</pre>"


def _paragraph(run: RunStory) -> str:
    return f"<p>{escape(report.paragraph_of_run(run.recorded, run.account))}</p>"
