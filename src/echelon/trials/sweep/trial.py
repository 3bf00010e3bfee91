"""One trial of a sweep: its values, what its run has told of the metric, and how it ended."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from echelon.launch import samples
from echelon.monitor.watch.live import Tail

STATES = ENDED, STOPPED, WAITING, FAILED = "ended well", "stopped", "waiting", "failed"
"""In the order of the table. A trial without a result waits: for a slot, or for the next start of its sweep."""
LEAST_FINISHED = 5  # the trials that must have ended well before one is stopped
MOST_OF_LINE = 1 << 16
NEAR = 1.005
"""Of places whose ratio is less, a course has one: it grows with the logarithm of the number of reports."""
_NUMBER = r"[-+]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|nan|inf(?:inity)?)"
Report = tuple[float, float]
"""A value of the metric behind its place: the number of reports, or of samples trained."""


@dataclass(slots=True, kw_only=True)
class SweepTrial:
    """A trial, and what its run has told so far."""

    number: int
    values: dict[str, str]
    points: dict[str, float] = field(default_factory=dict)
    """Where Optuna's space has the values; empty without Optuna."""
    state: str = WAITING
    run: str = ""
    """The run directory, relative to the folder of the sweep; empty: it was never started."""
    metric: float | None = None
    """The last value."""
    course: list[Report] = field(default_factory=list)
    """The values that were better than all before."""
    place: float = 0.0
    """The place of the last value."""
    seconds: float = 0.0
    exit_code: int = 0
    why: str = ""
    """The reason of a failure."""

    @property
    def number_told(self) -> float | None:
        """Return the metric; None if there is none, or if it is not finite."""
        return self.metric if self.metric is not None and math.isfinite(self.metric) else None

    def hear(self, report: Report, sign: int) -> None:
        """Take a value of the metric; `sign` is -1 where larger is better, else 1."""
        self.place, self.metric = report
        if math.isfinite(self.metric) and (not self.course or sign * self.metric < sign * self.course[-1][1]):
            if len(self.course) > 1 and self.course[-1][0] < NEAR * self.course[-2][0]:
                self.course.pop()
            self.course.append(report)

    def best_until(self, place: float) -> float | None:
        return next((value for reported, value in reversed(self.course) if reported <= place), None)


def ranked(trials: Sequence[SweepTrial], sign: int) -> list[SweepTrial]:
    """Return the trials by their ends, and of equal ones the best first; those without a number come behind them."""

    def key(trial: SweepTrial) -> tuple[int, float, int]:
        value = trial.number_told
        return STATES.index(trial.state), math.inf if value is None else sign * value, trial.number

    return sorted(trials, key=key)


def is_worse_than_median(trial: SweepTrial, others: Sequence[SweepTrial], sign: int) -> bool:
    """Say whether a trial is worse than the median of those that came as far: each by its best value until then."""
    if sum(other.state == ENDED and bool(other.course) for other in others) < LEAST_FINISHED or trial.metric is None:
        return False
    own = sign * trial.course[-1][1] if trial.course else math.inf  # it has told no finite value
    as_far = [other.best_until(trial.place) for other in others if other is not trial and other.place >= trial.place]
    bests = [sign * best for best in as_far if best is not None]
    return len(bests) >= LEAST_FINISHED and own > median(bests)


class PrintedMetric:
    """Finds the values of a metric in what a run prints: `val_loss 0.31`, `val_loss=0.31`, `{"val_loss": 0.31}`."""

    def __init__(self, name: str) -> None:
        head = rf"""(?<![\w./-]){re.escape(name)}["']?(?:[ \t]*[:=][ \t]*|[ \t]+)(?:tensor\()?"""
        self._pattern = re.compile(rf"{head}({_NUMBER})(?!\w|[.,][0-9])".encode(), re.IGNORECASE)
        self._rest = b""
        self._num_reports = 0

    def reports(self, data: bytes | None) -> list[Report]:
        """Return the values in the lines that end in this output; empty output ends the last line, None adds none."""
        text = self._rest + (b"\n" if data == b"" else data or b"").replace(b"\r", b"\n")
        end = text.rfind(b"\n") + 1
        self._rest = text[end:][-MOST_OF_LINE:]
        values = [float(match[1]) for match in self._pattern.finditer(text[:end])]
        self._num_reports += len(values)
        return list(enumerate(values, self._num_reports - len(values) + 1))


class MeasuredLoss:
    """Reads the losses that echelon measures in a run, from its file of samples."""

    def __init__(self, run_directory: str) -> None:
        self._tail = Tail(os.path.join(run_directory, samples.NAME), num_whole=1)

    def reports(self, data: bytes | None) -> list[Report]:
        """Return the losses that are new; nothing while the run prints, so that output costs no look."""
        told = [] if data else self._tail.look()
        return [(fields["samples"], fields["loss"]) for fields in told if {"samples", "loss"} <= fields.keys()]
