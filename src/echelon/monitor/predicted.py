"""Compare what a run measured with what was predicted for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echelon.estimate import remembered
from echelon.estimate.devices import CPU, Device
from echelon.estimate.remembered import Prediction, Training
from echelon.machines import kept_rows
from echelon.monitor.account import Account
from echelon.monitor.recorded import Recorded
from echelon.units import size


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
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
        return remembered.ratio(
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


def of_run(recorded: Recorded, account: Account, environ: Mapping[str, str]) -> Predicted | None:
    """Return what was predicted for a run before it began; None if nothing was, or the script was edited since."""
    training = training_of(recorded, account.num_ranks)
    if training is None or account.training is None or not recorded.events:
        return None
    rows = kept_rows.read(remembered.PREDICTIONS, environ)
    prediction = remembered.find(rows, training, before=float(recorded.events[0]["time"]))
    if prediction is None:
        return None
    return Predicted(
        prediction=prediction,
        run=str(recorded.plan.get("run_id", recorded.path)),
        allocated_bytes=account.training.peak_allocated_bytes,
        reserved_bytes=account.training.peak_reserved_bytes,
    )


def keep(found: Predicted, environ: Mapping[str, str]) -> None:
    """Keep the ratio of a run that is over, once."""
    if found.ratio is not None:
        kept_rows.add(remembered.RATIOS, [found.ratio], environ)


def training_of(recorded: Recorded, num_ranks: int) -> Training | None:
    """Return the training of a run; None if it is no script, or if the script is gone."""
    words = [str(word) for word in recorded.plan.get("argv") or ()]
    options = recorded.plan.get("scale_options")
    scale = options if isinstance(options, dict) else {"how": "off"}
    if len(words) < 2 or not words[1].endswith(".py"):
        return None
    path = os.path.join(str(recorded.plan.get("folder", "")), os.path.basename(words[1]))
    return remembered.of_script(
        path,
        tuple(words[2:]),
        str(scale.get("how")),
        num_ranks,
        has_own_batches=bool(scale.get("keeps_batch")),
    )
