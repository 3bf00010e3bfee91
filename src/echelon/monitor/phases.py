"""Divide the time of a run into phases: each moment belongs to one of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from echelon.monitor.attempts import Attempt
from echelon.monitor.recorded import Recorded

IMPORT = "import"
START = "start"
BEFORE = "before the first step"
STEPS = "steps"
SCRIPT = "script"
"""The work of a program that makes no steps of a PyTorch optimizer."""
RESTARTS = "restarts"
END = "end"
ORDER = (IMPORT, START, BEFORE, STEPS, SCRIPT, RESTARTS, END)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the run's time."""

    name: str
    seconds: float


def of_run(recorded: Recorded, attempts: list[Attempt], began: float, ended: float) -> tuple[Phase, ...]:
    """Return the phases from the begin of a run to its end, or to now, in the order in which they occur."""
    if not attempts:
        return (Phase(name=START, seconds=ended - began),)
    seconds: defaultdict[str, float] = defaultdict(float)
    ready = min(attempts[0].ready or ended, ended)
    seconds[IMPORT] = min(_import_seconds(recorded, ready), ready - began)
    seconds[START] = ready - began - seconds[IMPORT]
    spans = _spans(attempts, ended)
    moment = ready
    for number, (attempt, work_began, work_ended) in enumerate(spans):
        if number == 0 and attempt.first_step is not None:
            loaded = max(attempt.ready or attempt.began, moment)
            seconds[RESTARTS] += loaded - moment  # attempts that failed before their first step
            seconds[BEFORE] += max(0.0, work_began - loaded)
        else:
            seconds[RESTARTS] += max(0.0, work_began - moment)
        moment = max(moment, work_began)
        seconds[SCRIPT if attempt.first_step is None else STEPS] += max(0.0, work_ended - moment)
        moment = max(moment, work_ended)
    is_last = bool(spans) and spans[-1][0] is attempts[-1]
    seconds[END if is_last else RESTARTS] += max(0.0, ended - moment)
    return tuple(Phase(name=name, seconds=seconds[name]) for name in ORDER if seconds[name])


def _import_seconds(recorded: Recorded, ready: float) -> float:
    """Return the longest import of a node before the ranks were ready; they import side by side."""
    imports = [event for event in recorded.events if event["event"] == "imported" and float(event["time"]) <= ready]
    return max((float(event.get("seconds") or 0) for event in imports), default=0.0)


def _spans(attempts: list[Attempt], ended: float) -> list[tuple[Attempt, float, float]]:
    """Return the attempts that worked, each with the begin and the end of its work.

    If any attempt made steps, only those with steps worked: the others failed before.
    """
    has_steps = any(attempt.first_step is not None for attempt in attempts)
    spans = []
    for attempt in attempts:
        stopped = attempt.ended if attempt.ended is not None else ended
        if attempt.first_step is not None and attempt.last_step is not None:
            is_over = attempt.ended is not None
            spans.append((attempt, attempt.first_step, min(attempt.last_step, ended) if is_over else ended))
        elif not has_steps:
            spans.append((attempt, attempt.ready if attempt.ready is not None else attempt.began, min(stopped, ended)))
    return spans
