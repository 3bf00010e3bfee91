"""The attempts of a run, and its time divided into phases: each moment belongs to one of them."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from echelon.environment import regular_files
from echelon.monitor.recorded import Recorded

CONTINUES = re.compile(
    rb"^echelon: continues after step (\d{1,18}), from (?:[^;\n]*; ([^\n]*) in (\d+(?:\.\d+)?) s$)?", re.MULTILINE
)
"""What rank 0 says when a training goes on; train.continuing also tells how it came there."""
HEAD_BYTES = 1 << 20  # the line comes before the output of the steps


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One start of all ranks; moments are seconds since 1970, None where they are unknown."""

    number: int
    num_ranks: int
    began: float
    ready: float | None = None
    """When the last rank was started."""
    first_step: float | None = None
    """When the first step of an optimizer ended."""
    num_at_first: int = 1
    """The number of steps at that moment; more than one if it is that of a sample."""
    last_step: float | None = None
    ended: float | None = None
    num_steps: int = 0
    """Steps that were computed, on the rank with most of them."""
    continued_after: int = 0
    """The step of the checkpoint from which the attempt went on; 0: it began anew."""
    repeat_seconds: float | None = None
    """How long it repeated the loop up to that step without computing; None: the script counts its own steps."""
    step_times: dict[int, int] = field(default_factory=dict)
    """How many steps of all ranks took the time of each bucket of `node.pulse`."""
    measures: dict[int, dict[str, float]] = field(default_factory=dict)
    """Rank → what it has measured from its first step to its last one, by the names of `node.pulse.MEASURES`."""
    cause: str = ""
    """Why the attempt failed; empty if it did not."""
    rank: int = -1
    """The rank that failed first; -1: none."""
    error: str = ""

    @property
    def reached(self) -> int:
        """The last step, counted from the begin of the training."""
        return self.continued_after + self.num_steps

    @property
    def was_killed(self) -> bool:
        """Whether the failed rank was ended by SIGKILL, as the kernel ends who uses too much memory."""
        return "SIGKILL" in self.error or "the kernel killed it" in self.error


def read(recorded: Recorded) -> list[Attempt]:
    attempts: list[Attempt] = []
    for event in recorded.events:
        if event["event"] == "attempt":
            attempts.append(
                Attempt(number=event["number"], num_ranks=int(event.get("ranks", 0)), began=float(event["time"]))
            )
        elif attempts:
            _note(attempts[-1], event)
    for attempt in attempts:
        _fill_from_samples(attempt, recorded)
        line = _continuation(recorded.path, attempt.number)
        if line is not None:
            attempt.continued_after = int(line[1])
            if line[2]:
                attempt.repeat_seconds = float(line[3]) if b"repeated" in line[2] else 0.0
    return attempts


def num_again(attempts: Iterable[Attempt]) -> int:
    """Return how many steps were computed again; an attempt that failed before its first step took none back."""
    made = [attempt for attempt in attempts if attempt.num_steps]
    return sum(max(0, before.reached - after.continued_after) for before, after in pairwise(made))


def _note(attempt: Attempt, event: dict[str, Any]) -> None:
    kind, moment = event["event"], float(event["time"])
    if kind in ("imported", "started"):
        attempt.ready = max(attempt.ready or moment, moment)
    elif kind == "exit":
        attempt.ended = max(attempt.ended or moment, moment)
        if attempt.ready is not None and attempt.num_ranks == 1:
            attempt.ready = min(attempt.ready, moment)  # a short script is over before its agent says that it started
        _note_steps(attempt, event)
    elif kind == "agent lost":
        attempt.ended = max(attempt.ended or moment, moment)
    elif kind in ("restart", "end"):
        attempt.ended = attempt.ended or moment
        if event.get("exit_code") == 0:
            return  # the training ended, or its chain goes on with the next job
        attempt.cause, attempt.error = str(event.get("cause", "")), str(event.get("error") or event.get("detail") or "")
        attempt.rank = int(event.get("rank", -1))


def _note_steps(attempt: Attempt, event: dict[str, Any]) -> None:
    attempt.measures[int(event.get("rank", -1))] = dict(event.get("measures") or {})
    if not event.get("steps"):
        return
    attempt.num_steps = max(attempt.num_steps, int(event["steps"]))
    first, last = float(event["first_step"]), float(event["last_step"])
    attempt.first_step = min(attempt.first_step or first, first)
    attempt.last_step = max(attempt.last_step or last, last)
    for bucket, count in event["step_times"]:
        attempt.step_times[bucket] = attempt.step_times.get(bucket, 0) + count


def continued_after(path: str, number: int) -> int:
    """Return the step after which an attempt went on; 0 if it began anew."""
    line = _continuation(path, number)
    return int(line[1]) if line else 0


def _continuation(path: str, number: int) -> re.Match[bytes] | None:
    """Return the words in which an attempt said that it continues."""
    try:
        with regular_files.opened(os.path.join(path, "logs", f"attempt-{number}", "rank-0.log")) as log:
            return CONTINUES.search(log.read(HEAD_BYTES))
    except OSError:
        return None


def _fill_from_samples(attempt: Attempt, recorded: Recorded) -> None:
    """Take from the samples what ranks could not tell at their end: they still run, or their node was lost."""
    for sample in recorded.samples:
        if sample.get("attempt") != attempt.number or "steps" not in sample:
            continue
        most = max(steps_of(sample), default=0)
        if most <= attempt.num_steps:
            continue
        if attempt.first_step is None:
            attempt.first_step, attempt.num_at_first = float(sample["time"]), most
        attempt.num_steps = most
        attempt.last_step = max(attempt.last_step or 0.0, float(sample["time"]))
    _fill_measures(attempt, recorded)


def _fill_measures(attempt: Attempt, recorded: Recorded) -> None:
    """Take the newest measures of ranks that have not told theirs at their end."""
    if attempt.num_ranks and len(attempt.measures) >= attempt.num_ranks:
        return
    for sample in reversed(recorded.samples):
        if sample.get("attempt") == attempt.number and "measures" in sample:
            for rank, measures in enumerate(of_ranks(sample)):
                attempt.measures.setdefault(rank, measures)
            return


def of_ranks(sample: dict[str, Any]) -> list[dict[str, float]]:
    """Return the measures of each rank in a line of samples.jsonl, where equal values stand once."""
    ranks: list[dict[str, float]] = [{} for _ in range(int(sample["ranks"]))]
    for name, values in sample.get("measures", {}).items():
        for rank, value in enumerate(values if isinstance(values, list) else [values] * len(ranks)):
            if value is not None:
                ranks[rank][name] = float(value)
    return ranks


def steps_of(sample: Mapping[str, Any]) -> list[int]:
    """Return the steps of the ranks in a line of samples.jsonl; one number stands for equal ones."""
    steps = sample["steps"]
    return [int(number) for number in (steps if isinstance(steps, list) else [steps])]


IMPORT = "import"
START = "start"
BEFORE = "before the first step"
STEPS = "steps"
SCRIPT = "script"  # the work of a program that makes no steps of a PyTorch optimizer
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
    imports = [event for event in recorded.events if event["event"] == "imported" and float(event["time"]) <= ready]
    seconds[IMPORT] = min(max((float(event.get("seconds") or 0) for event in imports), default=0.0), ready - began)
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
