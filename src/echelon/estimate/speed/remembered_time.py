"""What time of a step was estimated for a training, what its run took, and how far estimates can be trusted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from echelon.estimate import trainings
from echelon.estimate.speed.runs import Interval, PredictedSize
from echelon.estimate.trainings import Training
from echelon.units import counted

FORECASTS, RATIOS = "forecasts", "time-ratios"
"""The names of the two files in the user's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The time of a step that was estimated for a size of a training."""

    training: Training
    machine: str
    """Empty: unknown."""
    step_seconds: Interval
    time: float
    """When it was estimated, in seconds since 1970."""

    def as_row(self) -> dict[str, Any]:
        return {
            **trainings.as_fields(self.training),
            "machine": self.machine,
            "step_seconds": asdict(self.step_seconds),
            "time": self.time,
        }


def estimates(training: Training, sizes: Sequence[PredictedSize], *, machine: str, time: float) -> list[Estimate]:
    return [
        Estimate(
            training=replace(training, num_ranks=size.num_devices),
            machine=machine,
            step_seconds=size.step_seconds,
            time=time,
        )
        for size in sizes
    ]


def find(rows: Iterable[Mapping[str, Any]], training: Training, *, before: float) -> Estimate | None:
    """Return the newest estimate for a training that was made before a moment; other rows are ignored."""
    newest: Estimate | None = None
    for row in trainings.rows_of(rows, training):
        try:
            span = {name: float(row["step_seconds"][name]) for name in ("value", "least", "most")}
            made, machine = float(row["time"]), str(row["machine"])
        except (KeyError, TypeError, ValueError):
            continue
        if made <= before and 0 < span["least"] <= span["value"] <= span["most"]:
            newest = Estimate(training=training, machine=machine, step_seconds=Interval(**span), time=made)
    return newest


def ratio(estimate: Estimate, *, run: str, step_seconds: float) -> dict[str, Any]:
    """Return the row that is kept of a run: its time of a step as a multiple of the estimate."""
    return {
        "run": run,
        "machine": estimate.machine,
        "step_seconds": round(step_seconds / estimate.step_seconds.value, 4),
        "is_inside": estimate.step_seconds.least <= step_seconds <= estimate.step_seconds.most,
    }


def trust(rows: Iterable[Mapping[str, Any]], *, machine: str) -> str:
    """Say how far runs on a machine were from what was estimated; empty without such runs.

    >>> trust([{"machine": "lumi", "step_seconds": 1.04, "is_inside": True}], machine="lumi")
    '1 run on lumi that was estimated before took 1.04 of the estimated time; 1 was in the range'
    """
    there = [row for row in rows if row.get("machine") == machine and isinstance(row.get("step_seconds"), (int, float))]
    if not there:
        return ""
    ratios = [float(row["step_seconds"]) for row in there]
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    span = low if low == high else f"{low} to {high}"
    num_inside = sum(row.get("is_inside") is True for row in there)
    where = f" on {machine}" if machine else ""
    was = "was" if len(there) == 1 else "were"
    inside = "1 was" if num_inside == 1 else f"{num_inside} were"
    head = f"{counted(len(there), 'run')}{where} that {was} estimated before took {span} of the estimated time"
    return f"{head}; {inside} in the range"
