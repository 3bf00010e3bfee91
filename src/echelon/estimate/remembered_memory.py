"""What memory was predicted for a training, what its run took, and how far predictions can be trusted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from echelon.estimate import trainings
from echelon.estimate.trainings import Training
from echelon.estimate.verdict import FitVerdict
from echelon.units import counted

PREDICTIONS, RATIOS = "predictions", "ratios"
"""The names of the two files in the user's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberedMemory:
    """The memory that the fullest rank of a training was predicted to take, in bytes."""

    training: Training
    rows: int
    """Of the batch of all ranks; 0: unknown."""
    torch: str
    chip: str
    low_bytes: int
    high_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    time: float
    """When it was predicted, in seconds since 1970."""

    def as_row(self) -> dict[str, Any]:
        """Return the prediction as JSON fields."""
        row = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "training"}
        return {**trainings.as_fields(self.training), **row}


def predict(training: Training, verdict: FitVerdict, *, torch: str, rows: int, time: float) -> RememberedMemory:
    return RememberedMemory(
        training=training,
        rows=rows,
        torch=_plain(torch),
        chip=verdict.device.chip,
        low_bytes=verdict.low_bytes,
        high_bytes=verdict.high_bytes,
        allocated_bytes=verdict.memory.allocated_bytes,
        reserved_bytes=verdict.memory.reserved_bytes,
        time=time,
    )


def find(rows: Iterable[Mapping[str, Any]], training: Training, *, before: float) -> RememberedMemory | None:
    """Return the newest prediction for a training that was made before a moment; other rows are ignored."""
    newest: RememberedMemory | None = None
    for row in trainings.rows_of(rows, training):
        try:
            rest = {name: _FIELDS[name](row[name]) for name in _FIELDS}
        except (KeyError, TypeError, ValueError):
            continue
        if rest["time"] <= before and rest["reserved_bytes"] > 0 and rest["allocated_bytes"] > 0:
            newest = RememberedMemory(training=training, **rest)
    return newest


_FIELDS: dict[str, Any] = {
    "rows": int,
    "torch": str,
    "chip": str,
    "low_bytes": int,
    "high_bytes": int,
    "allocated_bytes": int,
    "reserved_bytes": int,
    "time": float,
}


def ratio(prediction: RememberedMemory, *, run: str, allocated_bytes: int, reserved_bytes: int) -> dict[str, Any]:
    """Return the row that is kept of a run: what it took as a multiple of what was predicted."""
    return {
        "run": run,
        "chip": prediction.chip,
        "torch": prediction.torch,
        "allocated": round(allocated_bytes / prediction.allocated_bytes, 4),
        "reserved": round(reserved_bytes / prediction.reserved_bytes, 4),
    }


def trust(rows: Iterable[Mapping[str, Any]], *, chip: str, torch: str) -> str:
    """Say how far runs on this chip with this PyTorch were from what was predicted; empty without such runs.

    >>> trust([{"chip": "A100", "torch": "2.13", "reserved": 1.02}], chip="A100", torch="2.13")
    'on this kind of device (A100, PyTorch 2.13) 1 run took 1.02 of what was predicted'
    """
    device = (chip, _plain(torch))
    there = [row.get("reserved") for row in rows if (row.get("chip"), row.get("torch")) == device]
    ratios = [float(each) for each in there if isinstance(each, (int, float))]
    if not ratios:
        return ""
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    span = low if low == high else f"{low} to {high}"
    where = f"on this kind of device ({chip}, PyTorch {device[1]})"
    return f"{where} {counted(len(ratios), 'run')} took {span} of what was predicted"


def _plain(torch: str) -> str:
    """Return a version without its build: a login node may have 2.13.0+cpu, and its compute nodes 2.13.0+rocm6.4."""
    return torch.partition("+")[0]
