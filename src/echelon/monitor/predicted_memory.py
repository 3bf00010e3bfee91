"""Compare the memory of a run with what `echelon fit` or `--scale auto-fit` predicted for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echelon.estimate import remembered_memory
from echelon.estimate.devices import CPU, Device
from echelon.estimate.remembered_memory import Prediction
from echelon.machines import kept_rows
from echelon.monitor import trainings
from echelon.monitor.account import Account
from echelon.monitor.recorded import Recorded
from echelon.units import size


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedMemory:
    """A prediction, and what the run measured of it."""

    prediction: Prediction
    run: str
    allocated_bytes: int | None
    """None: a CPU's allocator is not measured."""
    reserved_bytes: int | None

    @property
    def ratio(self) -> dict[str, Any] | None:
        """The row that is kept of the run; None where nothing was measured."""
        is_cpu = Device(chip=self.prediction.chip, memory_bytes=1).family == CPU
        if is_cpu or self.allocated_bytes is None or self.reserved_bytes is None:
            return None
        return remembered_memory.ratio(
            self.prediction, run=self.run, allocated_bytes=self.allocated_bytes, reserved_bytes=self.reserved_bytes
        )

    @property
    def line(self) -> str:
        """One sentence."""
        prediction, ratio = self.prediction, self.ratio
        span = f"{size(prediction.low_bytes)} to {size(prediction.high_bytes)} on {prediction.chip}"
        if ratio is None:
            return f"{span}; nothing is compared, because the allocator of a CPU is not measured"
        return (
            f"{span}, {size(prediction.reserved_bytes)} of it reserved by PyTorch; the run reserved "
            f"{ratio['reserved']:.2f} of that, and its tensors took {ratio['allocated']:.2f} of their part"
        )

    def keep(self, environ: Mapping[str, str]) -> None:
        """Keep the ratio of a run that is over, once."""
        if self.ratio is not None:
            kept_rows.add(remembered_memory.RATIOS, [self.ratio], environ)

    def as_data(self) -> dict[str, Any]:
        """Return the comparison as JSON fields."""
        ratio = self.ratio or {}
        return {
            **self.prediction.as_row(),
            "measured_allocated_bytes": self.allocated_bytes,
            "measured_reserved_bytes": self.reserved_bytes,
            "allocated_ratio": ratio.get("allocated"),
            "reserved_ratio": ratio.get("reserved"),
        }


def of_run(recorded: Recorded, account: Account, environ: Mapping[str, str]) -> PredictedMemory | None:
    """Return what was predicted for a run before it began; None if nothing was, or the script was edited since."""
    training = trainings.of_run(recorded, account.num_ranks)
    if training is None or account.training is None or not recorded.events:
        return None
    rows = kept_rows.read(remembered_memory.PREDICTIONS, environ)
    prediction = remembered_memory.find(rows, training, before=float(recorded.events[0]["time"]))
    if prediction is None:
        return None
    return PredictedMemory(
        prediction=prediction,
        run=str(recorded.plan.get("run_id", recorded.path)),
        allocated_bytes=account.training.peak_allocated_bytes,
        reserved_bytes=account.training.peak_reserved_bytes,
    )
