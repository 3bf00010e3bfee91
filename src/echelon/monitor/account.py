"""Account for a run: what it used, where the time went, how long its steps took, and how busy its devices were."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from echelon.monitor import attempts as attempts_of
from echelon.monitor.attempts import Attempt
from echelon.monitor.recorded import Recorded
from echelon.node.pulse import seconds_of

SLOW = 3.0
"""A step is slow if it takes so many times the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the run's time."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of the optimizers, as PyTorch made them."""

    number: int
    """Computed steps on the rank with most of them, in all attempts."""
    num_again: int
    """How many of these had been computed before a failure."""
    per_second: float
    median_seconds: float
    seconds_90: float
    """90 % of the steps took no longer."""
    seconds_99: float
    slow_share: float
    """The part of the steps' time in steps that took more than three times the median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """How busy a device was, from one look every ten seconds."""

    node: str
    number: int
    mean: float
    """In per cent."""
    most: int
    looks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What a run did."""

    seconds: float
    num_nodes: int
    num_ranks: int
    num_devices: int
    device_hours: float
    billed: float | None
    """What the run cost by the machine's rule; None if no rule is known."""
    billed_unit: str
    phases: tuple[Phase, ...]
    steps: Steps | None
    """None: no PyTorch optimizer made a step, or the run is older than its samples."""
    devices: tuple[Device, ...]
    attempts: tuple[Attempt, ...]

    def share(self, *names: str) -> float:
        """Return the part of the run's time in some phases."""
        total = sum(phase.seconds for phase in self.phases)
        return sum(phase.seconds for phase in self.phases if phase.name in names) / total if total else 0.0


IMPORT, START, BEFORE, STEPS, SCRIPT, RESTARTS, END = (
    "import",
    "start",
    "before the first step",
    "steps",
    "script",
    "restarts",
    "end",
)


def account(recorded: Recorded, now: float) -> Account:
    """Account for a run; `now` is the end of a run that still goes on."""
    began = float(recorded.events[0]["time"]) if recorded.events else now
    is_over = bool(recorded.report) or any(event["event"] == "end" for event in recorded.events)
    ended = max((float(event["time"]) for event in recorded.events), default=began) if is_over else now
    attempts = attempts_of.read(recorded)
    num_devices = sum(int(event.get("devices", 0)) for event in recorded.events if event["event"] == "agent")
    seconds = max(0.0, ended - began)
    billed, unit = _billed(recorded.booking, seconds)
    return Account(
        seconds=seconds,
        num_nodes=int(recorded.plan.get("num_nodes") or 0),
        num_ranks=max((attempt.num_ranks for attempt in attempts), default=0),
        num_devices=num_devices,
        device_hours=num_devices * seconds / 3600,
        billed=billed,
        billed_unit=unit,
        phases=_phases(recorded, attempts, began, ended),
        steps=_steps(attempts),
        devices=_devices(recorded),
        attempts=tuple(attempts),
    )


def _billed(booking: dict[str, Any], seconds: float) -> tuple[float | None, str]:
    """Return the part of the bill for the time that was used."""
    billed, minutes = booking.get("billed"), booking.get("minutes")
    if not isinstance(billed, (int, float)) or not minutes:
        return None, ""
    return billed * seconds / (60 * minutes), str(booking.get("billed_unit", ""))


def _phases(recorded: Recorded, attempts: list[Attempt], began: float, ended: float) -> tuple[Phase, ...]:
    """Divide the time from the begin to the end; each moment belongs to one phase."""
    if not attempts:
        return (Phase(name=START, seconds=ended - began),)
    first, last = attempts[0], attempts[-1]
    ready = min(first.ready or ended, ended)
    imports = [event for event in recorded.events if event["event"] == "imported" and float(event["time"]) <= ready]
    importing = min(max((float(event.get("seconds") or 0) for event in imports), default=0.0), ready - began)
    has_steps = any(attempt.num_steps for attempt in attempts)
    seconds = {IMPORT: importing, START: ready - began - importing}
    if has_steps:
        seconds[BEFORE] = max(0.0, (first.first_step or ready) - ready)
    work = 0.0
    for index, attempt in enumerate(attempts):
        following = attempts[index + 1].work_began if index + 1 < len(attempts) else ended
        stopped = attempt.work_ended if attempt.work_ended is not None else following
        stopped = min(max(stopped, attempt.work_began), following)
        work += stopped - attempt.work_began
        name = RESTARTS if attempt is not last else END
        seconds[name] = seconds.get(name, 0.0) + following - stopped
    seconds[STEPS if has_steps else SCRIPT] = work
    order = (IMPORT, START, BEFORE, STEPS, SCRIPT, RESTARTS, END)
    return tuple(Phase(name=name, seconds=max(0.0, seconds[name])) for name in order if name in seconds)


def _steps(attempts: list[Attempt]) -> Steps | None:
    number = sum(attempt.num_steps for attempt in attempts)
    if not number:
        return None
    passed = sum(
        attempt.last_step - attempt.first_step
        for attempt in attempts
        if attempt.last_step is not None and attempt.first_step is not None
    )
    times: Counter[int] = Counter()
    for attempt in attempts:
        times.update(attempt.step_times)
    median = _quantile(times, 0.5)
    whole = sum(seconds_of(bucket) * count for bucket, count in times.items())
    slow = sum(seconds_of(bucket) * count for bucket, count in times.items() if seconds_of(bucket) > SLOW * median)
    return Steps(
        number=number,
        num_again=sum(max(0, one.reached - other.continued_after) for one, other in pairwise(attempts)),
        per_second=max(0, number - len(attempts)) / passed if passed > 0 else 0.0,
        median_seconds=median,
        seconds_90=_quantile(times, 0.9),
        seconds_99=_quantile(times, 0.99),
        slow_share=slow / whole if whole else 0.0,
    )


def _quantile(times: Counter[int], share: float) -> float:
    """Return the time that a share of the steps does not exceed; 0 without steps."""
    left = share * sum(times.values())
    for bucket in sorted(times):
        left -= times[bucket]
        if left <= 0:
            return seconds_of(bucket)
    return 0.0


def _devices(recorded: Recorded) -> tuple[Device, ...]:
    """Return the load of each device: from the report, or from the newest samples of a run that has none."""
    load: dict[str, list[dict[str, Any]]] = {}
    for sample in recorded.samples:
        load.update(sample.get("load", {}))
    load.update(recorded.report.get("load", {}))
    return tuple(
        Device(node=node, number=int(row["device"]), mean=float(row["mean"]), most=int(row["most"]), looks=row["looks"])
        for node, rows in sorted(load.items())
        for row in rows
    )
