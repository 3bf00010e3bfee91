"""What a person sees of a sweep: the running trials, a line for each that ended, a table of all, and a picture."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from echelon.host import terminal
from echelon.monitor.page.plots import ENDINGS, LINES, Line, Panel, save
from echelon.trials.own_runs import Say
from echelon.trials.sweep.record import SweepQuestion
from echelon.trials.sweep.trial import ENDED, FAILED, STOPPED, WAITING, SweepTrial, ranked
from echelon.units import aligned, counted, duration

PICTURE = "sweep"
WIDE = 10.0  # from this ratio of the largest value to the smallest one on, an axis is logarithmic


def _named(trial: SweepTrial) -> str:
    return " ".join(f"{name}={value}" for name, value in trial.values.items())


def _written(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


class SweepView:
    """Standard error: a line for each trial that ended, and on a terminal, below them, the running ones."""

    def __init__(self, question: SweepQuestion, say: Say, environ: Mapping[str, str]) -> None:
        self.is_live = terminal.moves_cursor(sys.stderr, environ)
        self._question = question
        self._say = say
        self._num_lines = 0

    def tell(self, trial: SweepTrial, num_trials: int) -> None:
        self.clear()
        metric = f"{self._question.metric_name} {_written(trial.metric)}"
        how = {ENDED: metric, STOPPED: f"stopped at {metric}: worse than the median"}
        told = how.get(trial.state, f"failed ({trial.exit_code}): {trial.why}")
        self._say(f"trial {trial.number} of {num_trials}: {_named(trial)}: {told} · {duration(trial.seconds)}")

    def show(self, running: Sequence[tuple[SweepTrial, str, float]]) -> None:
        """Draw the running trials, each with its slot and its seconds, over those that were drawn before."""
        self.clear()
        if not self.is_live or not running:
            return
        rows = [("trial", "slot", self._question.metric_name, "runs", "values")]
        rows += [
            (str(trial.number), slot, _written(trial.metric), duration(seconds), _named(trial))
            for trial, slot, seconds in running
        ]
        size = os.get_terminal_size(sys.stderr.fileno())  # some terminals do not know theirs
        lines = [line[: (size.columns or 80) - 1] + "\n" for line in aligned(rows)][: (size.lines or 24) - 1]
        self._write("".join(lines))
        self._num_lines = len(lines)

    def clear(self) -> None:
        if self._num_lines:
            self._write(f"\033[{self._num_lines}A\r\033[J")
            self._num_lines = 0

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def beginning(question: SweepQuestion, num_trials: int, num_slots: int, num_ranks: int) -> str:
    side_by_side = f"{num_slots} runs of {counted(num_ranks, 'rank')} side by side"
    how = side_by_side if num_slots > 1 else "one after the other"
    return f"{counted(num_trials, 'trial')}, {how}; the sweep is in {os.path.relpath(question.folder)}"


def text(question: SweepQuestion, trials: Sequence[SweepTrial]) -> str:
    """Return the table of all trials, the best first."""
    names = [parameter.name for parameter in question.parameters]
    rows = [("trial", *names, question.metric_name, "state", "run", "took")]
    for trial in ranked(trials, question.sign):
        took = duration(trial.seconds) if trial.run else "–"
        state = "interrupted" if trial.state == WAITING and trial.run else trial.state
        state += f" ({trial.exit_code})" if trial.state == FAILED else ""
        values = [trial.values[name] for name in names]
        rows.append((str(trial.number), *values, _written(trial.metric), state, trial.run or "–", took))
    return "\n".join(aligned(rows))


def remarks(question: SweepQuestion, trials: Sequence[SweepTrial], seconds: float) -> list[str]:
    """Return the last lines: what is missing, and then how many trials ended how, and the best one."""
    name, folder = question.metric or "NAME", os.path.relpath(question.folder)
    counts = {state: sum(trial.state == state for trial in trials) for state in (ENDED, STOPPED, FAILED, WAITING)}
    num_silent = sum(trial.state == ENDED and trial.metric is None for trial in trials)
    forms = f'a line of the script is `{name} 0.31`, `{name}=0.31` or `{{"{name}": 0.31}}`'
    lines = [f"note: {counted(num_silent, 'trial')} told no {question.metric_name}; with --metric {name} {forms}"]
    lines = lines if num_silent else []
    if counts[WAITING]:
        lines.append(f"the others go on with: echelon sweep --resume {folder}")
    states = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    best = ranked(trials, question.sign)[0]
    has_best = best.state == ENDED and best.number_told is not None
    told = [f"best {question.metric_name} {_written(best.metric)}: {_named(best)}"] if has_best else []
    return [
        *lines,
        " · ".join([f"{counted(len(trials), 'trial')}: {states}", *told, duration(seconds), f"sweep {folder}"]),
    ]


def draw(question: SweepQuestion, trials: Sequence[SweepTrial]) -> str:
    """Draw the metric over each parameter; return the path, or empty if nothing can be drawn."""
    drawn = [trial for trial in ranked(trials, question.sign) if trial.state in (ENDED, STOPPED)]
    metrics = [trial.number_told for trial in drawn]
    if find_spec("matplotlib") is None or not any(metric is not None for metric in metrics):
        return ""
    panels = []
    for parameter in question.parameters:
        places, names = _places([trial.values[parameter.name] for trial in drawn])
        points = [(place, metric) for place, metric in zip(places, metrics, strict=True) if metric is not None]
        lines = [Line(name="trials", points=points, style="o", alpha=0.7)]
        lines += [Line(name="best", points=points[:1], style="*", colour=LINES[1])]
        is_wide = not names and min(places) > 0 and max(places) >= WIDE * min(places)
        panels.append(
            Panel(x=parameter.name, y=question.metric_name, lines=lines, logarithmic="x" * is_wide,
                  x_ticks=range(len(names)), x_names=names)
        )  # fmt: skip
    stem = os.path.join(question.folder, PICTURE)
    save(panels, [stem + ending for ending in ENDINGS], size=(max(5.0, 4.0 * len(panels)), 4.0))
    return os.path.relpath(stem) + ENDINGS[1]


def _places(texts: Sequence[str]) -> tuple[list[float], list[str]]:
    """Return where values stand on an axis, and the names of its ticks; numbers need none."""
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        numbers = [math.nan]
    if all(map(math.isfinite, numbers)):
        return numbers, []
    names = list(dict.fromkeys(texts))
    return [float(names.index(text)) for text in texts], names
