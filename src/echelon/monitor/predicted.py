"""Compare the memory and the steps of a run with what was predicted for its training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, TypeVar

from echelon.estimate import remembered
from echelon.estimate.devices import CPU, Device
from echelon.estimate.remembered import MemoryPrediction, Prediction, StartedTraining, TimePrediction
from echelon.machines import kept_rows
from echelon.monitor.account import Account
from echelon.monitor.attempts import steps_of
from echelon.monitor.recorded import Recorded
from echelon.units import size, step_time

_Prediction = TypeVar("_Prediction", bound=Prediction)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedMemory:
    """A prediction, and what the run measured of it."""

    prediction: MemoryPrediction
    run: str
    allocated_bytes: int | None
    """None: a CPU's allocator is not measured."""
    reserved_bytes: int | None

    @property
    def ratio(self) -> dict[str, Any] | None:
        """The row that is kept of the run: what it took as a multiple; None where nothing was measured."""
        prediction = self.prediction
        is_cpu = Device(chip=prediction.chip, memory_bytes=1).family == CPU
        if is_cpu or self.allocated_bytes is None or self.reserved_bytes is None:
            return None
        return {
            "run": self.run,
            "chip": prediction.chip,
            "torch": prediction.torch,
            "allocated": round(self.allocated_bytes / prediction.allocated_bytes, 4),
            "reserved": round(self.reserved_bytes / prediction.reserved_bytes, 4),
        }

    @property
    def line(self) -> str:
        prediction, ratio = self.prediction, self.ratio
        span = f"{size(prediction.low_bytes)} to {size(prediction.high_bytes)} on {prediction.chip}"
        if ratio is None:
            return f"{span}; nothing is compared, because the allocator of a CPU is not measured"
        return (
            f"{span}, {size(prediction.reserved_bytes)} of it reserved by PyTorch; the run reserved "
            f"{ratio['reserved']:.2f} of that, and its tensors took {ratio['allocated']:.2f} of their part"
        )

    def as_data(self) -> dict[str, Any]:
        ratio = self.ratio or {}
        return {
            **self.prediction.as_row(),
            "measured_allocated_bytes": self.allocated_bytes,
            "measured_reserved_bytes": self.reserved_bytes,
            "allocated_ratio": ratio.get("allocated"),
            "reserved_ratio": ratio.get("reserved"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedTime:
    """An estimate, and what the run measured."""

    prediction: TimePrediction
    run: str
    step_seconds: float

    @property
    def ratio(self) -> dict[str, Any]:
        """The row that is kept of the run: its time of a step as a multiple of the estimate."""
        span = self.prediction.step_seconds
        return {
            "run": self.run,
            "machine": self.prediction.machine,
            "step_seconds": round(self.step_seconds / span.value, 4),
            "is_inside": span.least <= self.step_seconds <= span.most,
        }

    @property
    def line(self) -> str:
        span, took = self.prediction.step_seconds, step_time(self.step_seconds)
        likely = f"{step_time(span.least)} to {step_time(span.most)} a step, most likely {step_time(span.value)}"
        return f"{likely}; the run took {took}, {self.ratio['step_seconds']:.2f} of that"

    def as_data(self) -> dict[str, Any]:
        ratio = self.ratio
        return {
            **asdict(self.prediction.step_seconds),
            "measured": self.step_seconds,
            "ratio": ratio["step_seconds"],
            "is_inside": ratio["is_inside"],
        }


def memory_of_run(recorded: Recorded, account: Account, environ: Mapping[str, str]) -> PredictedMemory | None:
    """Return what was predicted for a run before it began; None if nothing was, or the script was edited since."""
    prediction = _newest(MemoryPrediction, recorded, account.num_ranks, environ)
    if prediction is None or account.training is None:
        return None
    return PredictedMemory(
        prediction=prediction,
        run=str(recorded.plan.get("run_id", recorded.path)),
        allocated_bytes=account.training.peak_allocated_bytes,
        reserved_bytes=account.training.peak_reserved_bytes,
    )


def time_of_run(recorded: Recorded, account: Account, environ: Mapping[str, str]) -> PredictedTime | None:
    """Return what was estimated for a run before it began; None without an estimate, or with too few steps."""
    prediction = _newest(TimePrediction, recorded, account.num_ranks, environ)
    measured = steady_steps_of_run(recorded, account)
    if prediction is None or measured is None:
        return None
    run = str(recorded.plan.get("run_id", recorded.path))
    return PredictedTime(prediction=prediction, run=run, step_seconds=1 / measured[0])


def expected(recorded: Recorded, num_ranks: int, environ: Mapping[str, str]) -> dict[str, float]:
    """Return the numbers that were predicted for a run before it began."""
    memory = _newest(MemoryPrediction, recorded, num_ranks, environ)
    speed = _newest(TimePrediction, recorded, num_ranks, environ)
    return {
        **({"predicted_device_bytes": memory.high_bytes} if memory is not None else {}),
        **({"predicted_step_seconds": speed.step_seconds.value} if speed is not None else {}),
    }


def _newest(
    kind: type[_Prediction], recorded: Recorded, num_ranks: int, environ: Mapping[str, str]
) -> _Prediction | None:
    training = training_of_run(recorded, num_ranks)
    if training is None or not recorded.events:
        return None
    return kind.newest(kept_rows.read(kind.FILE, environ), training, before=float(recorded.events[0]["time"]))


def keep(comparison: PredictedMemory | PredictedTime, environ: Mapping[str, str]) -> None:
    """Keep the ratio of a run that is over, once."""
    if comparison.ratio is not None:
        kept_rows.add(comparison.prediction.RATIOS, [comparison.ratio], environ)


def training_of_run(recorded: Recorded, num_ranks: int) -> StartedTraining | None:
    """Return the training of a run; None if it is no script, or if the script is gone."""
    words = [str(word) for word in recorded.plan.get("argv") or ()]
    options = recorded.plan.get("scale_options")
    scale = options if isinstance(options, dict) else {"how": "off"}
    if len(words) < 2 or not words[1].endswith(".py"):
        return None
    path = os.path.join(str(recorded.plan.get("folder", "")), os.path.basename(words[1]))
    return remembered.training_of(
        path, tuple(words[2:]), str(scale.get("how")), num_ranks, has_own_batches=bool(scale.get("keeps_batch"))
    )


WARM_SHARE = 0.4  # the first part of a run's steps, which does not count
NUM_BLOCKS = 4  # the steps after it are divided into so many parts, which show the spread
FEWEST_STEPS = 10  # fewer steps give no rate


def steady_steps_of_run(files: Recorded, account: Account) -> tuple[float, float | None] | None:
    """Return the steps a second and their spread, which may be unknown; None for a run with too few steps."""
    if account.steps is None or account.steps.number < FEWEST_STEPS or not account.steps.per_second:
        return None
    return _of_samples(files) or (account.steps.per_second, None)


def _of_samples(files: Recorded) -> tuple[float, float] | None:
    """Return the steps a second after the warm-up, and their spread, from the samples of the last attempt; or None."""
    last = max((int(sample.get("attempt") or 0) for sample in files.samples), default=0)
    seen = [
        (float(sample["time"]), max(steps_of(sample), default=0))
        for sample in files.samples
        if sample.get("attempt") == last and "steps" in sample
    ]
    seen = [(moment, steps) for moment, steps in seen if steps]
    if not seen:
        return None
    first = seen[0][1] + WARM_SHARE * (seen[-1][1] - seen[0][1])
    steady = [point for point in seen if point[1] >= first]
    while len(steady) > 1 and steady[-1][1] == steady[-2][1]:
        steady.pop()  # the steps have ended, the ranks have not
    if len(steady) <= NUM_BLOCKS or steady[-1][1] - steady[0][1] < FEWEST_STEPS:
        return None
    edges = [steady[(len(steady) - 1) * place // NUM_BLOCKS] for place in range(NUM_BLOCKS + 1)]
    rates = [(steps - before) / (moment - earlier) for (earlier, before), (moment, steps) in pairwise(edges)]
    mean = (edges[-1][1] - edges[0][1]) / (edges[-1][0] - edges[0][0])
    return mean, min(0.99, max(abs(rate / mean - 1) for rate in rates))
