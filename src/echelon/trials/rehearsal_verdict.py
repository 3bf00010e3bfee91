"""Judge a disturbed run by the records of its ranks and by its run directory."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from echelon.environment import regular_files
from echelon.launch.failure import HANDED_OVER
from echelon.orders import rehearsal
from echelon.orders.rehearsal import FILL_DISK, SIGNAL, Fault

ROUNDING = 1e-6  # the relative difference of a tensor that counts as rounding for every script


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalVerdict:
    """How a run ended that was disturbed."""

    fault: Fault
    struck_at: int
    """The step after which the fault happened; 0: it did not happen."""
    survives: bool
    why_not: str
    """Empty if it survives."""
    cause: str
    """The cause that echelon named; empty if it named none."""
    error: str
    """The exception of the rank that echelon called the first to fail; empty without one."""
    lost_steps: int
    """The steps that were computed again."""
    seconds: float
    """From the fault to the next step that was completed; 0: the training was not interrupted."""
    difference: float | None
    """Of the weights at the end, relative; None: they were not compared."""
    is_same: bool
    """Whether they and the states of optimizers have the same bits."""

    def text(self) -> str:
        if not self.survives:
            return f"fails: {self.why_not}"
        steps = "1 step" if self.lost_steps == 1 else f"{self.lost_steps} steps"
        again = f"{steps} computed again" if self.lost_steps else "0 steps lost"
        after = f"goes on after {self.seconds:.1f} s" if self.seconds else "is not interrupted"
        weights = "the same weights" if self.is_same else f"the same weights to {self.difference:.0e}"
        return f"survives: {again}; {after}; {weights}"

    def as_plain(self) -> dict[str, Any]:
        fault = self.fault
        return {
            "fault": fault.kind, "rank": fault.rank, "step": self.struck_at or fault.step, "delay": fault.delay,
            "survives": self.survives, "why_not": self.why_not, "cause": self.cause, "error": self.error,
            "lost_steps": self.lost_steps,
            "seconds": round(self.seconds, 3), "difference": self.difference, "same_bits": self.is_same,
            "verdict": self.text(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Records:
    """The files that the ranks of one rehearsal wrote."""

    steps: list[dict[str, Any]]
    struck: Mapping[str, Any]
    end: Mapping[str, Any]

    def seconds(self) -> float:
        """Return the time from the fault to the first step of a process that was started after it."""
        before = {line["pid"] for line in self.steps if line["time"] <= self.struck["time"]}
        later = [line["time"] for line in self.steps if line["pid"] not in before]
        return later[0] - self.struck["time"] if later else 0.0

    def longest_step(self) -> float:
        """Return the longest time between two steps, in seconds."""
        times = [line["time"] for line in self.steps]
        return max((late - early for early, late in pairwise(times)), default=0.0)


def read(folder: str) -> Records:
    """Return the records of a folder; what is missing is empty."""
    steps = regular_files.read_objects(os.path.join(folder, rehearsal.STEPS_FILE))
    fault, end = (os.path.join(folder, name) for name in (rehearsal.FAULT_FILE, rehearsal.END_FILE))
    return Records(steps, regular_files.read_object(fault), regular_files.read_object(end))


def judge(
    fault: Fault, records: Records, run: str, *, num_steps: int, exit_code: int, bound: Callable[[], float]
) -> RehearsalVerdict:
    """Return the verdict on a run that was disturbed; `num_steps` is the number of steps of the undisturbed run.

    A state at the end that differs is compared with `bound()`, the largest relative difference that is rounding.
    """
    end = records.end
    cause = _cause(run, fault)
    why_not = ""
    if not records.struck:
        why_not = "the fault did not happen: the training ended before it"
    elif exit_code:
        why_not = f"exit code {exit_code}: {_report(run)}"
    elif not end:
        why_not = "the run ended before its last step"
    elif end["lacks"]:
        why_not = f"another training: {end['lacks']} is not in both states, or has another shape"
    elif not end["is_same"] and end["difference"] > bound():
        why_not = (
            f"the weights are others at the end: {end['tensor']} differs by {end['difference']:.1e}, and rounding "
            f"explains {bound():.0e}"
        )
    elif not cause:
        why_not = "echelon did not name the cause"
    has_state = bool(end) and not end["lacks"]
    return RehearsalVerdict(
        fault=fault,
        struck_at=int(records.struck.get("struck_at", 0)),
        survives=not why_not,
        why_not=why_not,
        cause=cause,
        error=next((str(event.get("error", "")) for event in _events(run) if event["event"] == "restart"), ""),
        lost_steps=max(0, len(records.steps) - num_steps),
        seconds=records.seconds() if records.struck else 0.0,
        difference=float(end["weights"]) if has_state else None,
        is_same=has_state and bool(end["is_same"]),
    )


def _cause(run: str, fault: Fault) -> str:
    """Return what echelon said about the fault: the cause of a restart, or a line of its own."""
    if fault.kind == FILL_DISK:
        return "the disk is full" if "the disk is full" in _logs(run) else ""
    events = _events(run)
    if fault.kind == SIGNAL:
        return next((f"told to save and end, {event['charge']} in charge" for event in events
                     if event["event"] == "order"), "")  # fmt: skip
    return next((str(event["cause"]) for event in events if event["event"] == "restart"), "")


def is_handed_over(run: str) -> bool:
    """Say whether the ranks of a run saved and ended, as they were told."""
    return bool(regular_files.read_object(os.path.join(run, "report.json")).get("cause") == HANDED_OVER)


def _report(run: str) -> str:
    report = regular_files.read_object(os.path.join(run, "report.json"))
    return " · ".join(str(report[name]) for name in ("cause", "detail") if report.get(name)) or "no report"


def _logs(run: str) -> str:
    texts = []
    for path in sorted(glob.glob(os.path.join(glob.escape(run), "logs", "attempt-*", "rank-*.log"))):
        with open(path, encoding="utf-8", errors="replace") as file:
            texts.append(file.read())
    return "\n".join(texts)


def _events(run: str) -> list[dict[str, Any]]:
    return regular_files.read_objects(os.path.join(run, "events.jsonl"))
