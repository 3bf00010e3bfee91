"""What was predicted of a training, by which it is found again when it has run; and how far runs were from that."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, TypeVar

from echelon.estimate import choice
from echelon.estimate.layout import TRACED, Layout
from echelon.estimate.speed.runs import Interval, PredictedSize
from echelon.estimate.verdict import FitVerdict
from echelon.units import counted

ONE = "one"
"""The way of a training on one rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedTraining:
    """A training as a person starts it: a run with equal values is a run of it."""

    script: str
    """An absolute path."""
    arguments: tuple[str, ...]
    digest: str
    """SHA-256 of the script's text."""
    how: str
    """The value of --scale; "one" on one rank."""
    num_ranks: int
    has_own_batches: bool
    """--per-device-batch: each rank has the script's batch."""

    def as_fields(self) -> dict[str, Any]:
        return {**asdict(self), "arguments": list(self.arguments)}


def training_of(
    path: str, arguments: tuple[str, ...], how: str, num_ranks: int, *, has_own_batches: bool
) -> StartedTraining | None:
    """Return the training of a script, None if it cannot be read; its way is that of one rank if it has one."""
    try:
        with open(path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None
    return StartedTraining(
        script=os.path.realpath(path),
        arguments=arguments,
        digest=digest,
        how=how if num_ranks > 1 else ONE,
        num_ranks=num_ranks,
        has_own_batches=has_own_batches and num_ranks > 1,
    )


def how(layout: Layout) -> str:
    """Return the way by which a run of this layout is known; empty if a run's plan does not tell it."""
    if layout.num_ranks > 1:
        return choice.how(layout)
    is_plain = not (layout.checkpointing or layout.accumulation > 1)
    return ONE if is_plain and (layout.precision, layout.optimizer) == (TRACED, TRACED) else ""


def _positive(value: Any) -> int:
    number = int(value)
    if number <= 0:
        raise ValueError("no size")
    return number


def _interval(fields: Mapping[str, Any]) -> Interval:
    interval = Interval(**{name: float(fields[name]) for name in ("value", "least", "most")})
    if not 0 < interval.least <= interval.value <= interval.most:
        raise ValueError("no interval")
    return interval


_Prediction = TypeVar("_Prediction", bound="Prediction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What was predicted of a training; it is kept as a row of a file in the user's folder."""

    FILE: ClassVar[str]
    RATIOS: ClassVar[str]
    """The name of the file of what runs took as a multiple of what was predicted."""
    READS: ClassVar[Mapping[str, Callable[[Any], Any]]]
    """What reads the further fields from JSON."""

    training: StartedTraining
    time: float
    """When it was predicted, in seconds since 1970."""

    def as_row(self) -> dict[str, Any]:
        fields = asdict(self)
        return {**self.training.as_fields(), **{name: fields[name] for name in (*self.READS, "time")}}

    @classmethod
    def newest(
        cls: type[_Prediction], rows: Iterable[Mapping[str, Any]], training: StartedTraining, *, before: float
    ) -> _Prediction | None:
        """Return the newest one for a training that was made before a moment; other rows are ignored."""
        newest, asked = None, training.as_fields()
        for row in rows:
            try:
                fields = {name: read(row[name]) for name, read in {**cls.READS, "time": float}.items()}
            except (KeyError, TypeError, ValueError):
                continue
            if fields["time"] <= before and all(row.get(name) == value for name, value in asked.items()):
                newest = cls(training=training, **fields)
        return newest


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction(Prediction):
    """The memory that the fullest rank of a training was predicted to take, in bytes."""

    FILE, RATIOS = "predictions", "ratios"
    READS: ClassVar = {
        **dict.fromkeys(("torch", "chip"), str),
        **dict.fromkeys(("rows", "low_bytes", "high_bytes"), int),
        **dict.fromkeys(("allocated_bytes", "reserved_bytes"), _positive),
    }

    rows: int
    """Of the batch of all ranks; 0: unknown."""
    torch: str
    chip: str
    low_bytes: int
    high_bytes: int
    allocated_bytes: int
    reserved_bytes: int


def predict(training: StartedTraining, verdict: FitVerdict, *, torch: str, rows: int, time: float) -> MemoryPrediction:
    return MemoryPrediction(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePrediction(Prediction):
    """The time of a step that was estimated for a size of a training."""

    FILE, RATIOS = "forecasts", "time-ratios"
    READS: ClassVar = {"machine": str, "step_seconds": _interval}

    machine: str
    """Empty: unknown."""
    step_seconds: Interval


def estimates(
    training: StartedTraining, sizes: Sequence[PredictedSize], *, machine: str, time: float
) -> list[TimePrediction]:
    trainings = (replace(training, num_ranks=size.num_devices) for size in sizes)
    return [
        TimePrediction(training=of_size, machine=machine, step_seconds=size.step_seconds, time=time)
        for of_size, size in zip(trainings, sizes, strict=True)
    ]


def trust_memory(rows: Iterable[Mapping[str, Any]], *, chip: str, torch: str) -> str:
    """Say how far runs on this chip with this PyTorch were from what was predicted; empty without such runs.

    >>> trust_memory([{"chip": "A100", "torch": "2.13", "reserved": 1.02}], chip="A100", torch="2.13")
    'on this kind of device (A100, PyTorch 2.13) 1 run took 1.02 of what was predicted'
    """
    device = (chip, _plain(torch))
    there = [row.get("reserved") for row in rows if (row.get("chip"), row.get("torch")) == device]
    ratios = [float(ratio) for ratio in there if isinstance(ratio, (int, float))]
    if not ratios:
        return ""
    where = f"on this kind of device ({chip}, PyTorch {device[1]})"
    return f"{where} {counted(len(ratios), 'run')} took {_span(ratios)} of what was predicted"


def trust_time(rows: Iterable[Mapping[str, Any]], *, machine: str) -> str:
    """Say how far runs on a machine were from what was estimated; empty without such runs.

    >>> trust_time([{"machine": "lumi", "step_seconds": 1.04, "is_inside": True}], machine="lumi")
    '1 run on lumi that was estimated before took 1.04 of the estimated time; 1 was in the range'
    """
    there = [row for row in rows if row.get("machine") == machine and isinstance(row.get("step_seconds"), (int, float))]
    if not there:
        return ""
    num_inside = sum(row.get("is_inside") is True for row in there)
    runs = counted(len(there), "run") + (f" on {machine}" if machine else "")
    took = f"took {_span([float(row['step_seconds']) for row in there])} of the estimated time"
    return f"{runs} that {_were(len(there))} estimated before {took}; {num_inside} {_were(num_inside)} in the range"


def _span(ratios: Sequence[float]) -> str:
    low, high = f"{min(ratios):.2f}", f"{max(ratios):.2f}"
    return low if low == high else f"{low} to {high}"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"


def _plain(torch: str) -> str:
    """Return a version without its build: a login node may have 2.13.0+cpu, and its compute nodes 2.13.0+rocm6.4."""
    return torch.partition("+")[0]
