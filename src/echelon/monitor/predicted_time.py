"""Compare the time of a run's steps with what `echelon fit --scaling` estimated for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from echelon.estimate.speed import remembered_time
from echelon.estimate.speed.remembered_time import Estimate
from echelon.machines import kept_rows
from echelon.monitor import steady, trainings
from echelon.monitor.account import Account
from echelon.monitor.recorded import Recorded
from echelon.units import step_time


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedTime:
    """An estimate, and what the run measured."""

    estimate: Estimate
    run: str
    step_seconds: float

    @property
    def ratio(self) -> dict[str, Any]:
        """The row that is kept of the run."""
        return remembered_time.ratio(self.estimate, run=self.run, step_seconds=self.step_seconds)

    @property
    def line(self) -> str:
        """One sentence."""
        span, took = self.estimate.step_seconds, step_time(self.step_seconds)
        likely = f"{step_time(span.least)} to {step_time(span.most)} a step, most likely {step_time(span.value)}"
        return f"{likely}; the run took {took}, {self.ratio['step_seconds']:.2f} of that"

    def keep(self, environ: Mapping[str, str]) -> None:
        """Keep the ratio of a run that is over, once."""
        kept_rows.add(remembered_time.RATIOS, [self.ratio], environ)

    def as_data(self) -> dict[str, Any]:
        """Return the comparison as JSON fields."""
        ratio = self.ratio
        return {
            **asdict(self.estimate.step_seconds),
            "measured": self.step_seconds,
            "ratio": ratio["step_seconds"],
            "is_inside": ratio["is_inside"],
        }


def of_run(recorded: Recorded, account: Account, environ: Mapping[str, str]) -> PredictedTime | None:
    """Return what was estimated for a run before it began; None without an estimate, or with too few steps."""
    training = trainings.of_run(recorded, account.num_ranks)
    measured = steady.of_run(recorded, account)
    if training is None or measured is None or not recorded.events:
        return None
    rows = kept_rows.read(remembered_time.FORECASTS, environ)
    estimate = remembered_time.find(rows, training, before=float(recorded.events[0]["time"]))
    if estimate is None:
        return None
    run = str(recorded.plan.get("run_id", recorded.path))
    return PredictedTime(estimate=estimate, run=run, step_seconds=1 / measured[0])
