"""Account for a run: what it used, where the time went, how long its steps took, and how busy its devices were."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from echelon.errors import UsageError
from echelon.monitor import attempts as attempts_of
from echelon.monitor import growth, lines, stragglers, training
from echelon.monitor.attempts import STEPS, Attempt, Phase
from echelon.monitor.growth import Growth
from echelon.monitor.lines import LineShare
from echelon.monitor.recorded import Recorded
from echelon.monitor.stragglers import Straggler
from echelon.monitor.training import MeasuredTraining
from echelon.node.pulse import seconds_of

SLOW = 3.0  # a step is slow if it takes so many times the median


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStatistics:
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
class DeviceUse:
    """How busy a device was, from one look every ten seconds."""

    node: str
    number: int
    mean: float
    """In per cent."""
    most: int
    looks: int
    energy_joules: float | None
    """Since the lookout began; None: its driver does not tell."""


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
    steps: StepStatistics | None
    """None: no PyTorch optimizer made a step, or the run is older than its samples."""
    training: MeasuredTraining | None
    """None: no rank has measured its steps."""
    lines: tuple[LineShare, ...]
    """The lines of the script that took much of the last attempt's steps, the largest first."""
    stragglers: tuple[Straggler, ...]
    """The ranks of the last attempt that made the others wait, over all its steps."""
    threads_beside: tuple[int, float]
    """The rank whose own threads use cores most beyond those of others, and for which part of its steps."""
    alternating: dict[int, int]
    """Ranks that made the others wait in turn, and in how many parts of the last attempt each did; empty: none."""
    devices: tuple[DeviceUse, ...]
    energy_joules: float | None
    """Of all devices that tell it, beside the run; None: no device does."""
    growths: tuple[Growth, ...]
    """What only grew in the last attempt."""
    attempts: tuple[Attempt, ...]

    def seconds_of(self, name: str) -> float:
        """Return the seconds of a phase; 0 if the run has none of this name."""
        return sum(phase.seconds for phase in self.phases if phase.name == name)

    def share(self, name: str) -> float:
        return self.seconds_of(name) / self.seconds if self.seconds else 0.0

    @property
    def goodput(self) -> float:
        """The part of the run's time in steps that count: those computed again after a failure count once."""
        return self.share(STEPS) * (1 - self.steps.num_again / self.steps.number) if self.steps is not None else 0.0


def of_run(recorded: Recorded, now: float | None = None) -> Account:
    """Account for a run; `now` is the present time for a run that goes on, and None for one that is over.

    Raises UsageError for events that no version of echelon writes.
    """
    try:
        return _of_run(recorded, now)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{recorded.path} has an event or a sample that echelon did not write: {type(error).__name__} {error}",
            hint="echelon runs",
        ) from None


def _of_run(recorded: Recorded, now: float | None) -> Account:
    moments = [float(line["time"]) for line in (*recorded.events, *recorded.samples)]
    began = moments[0] if recorded.events else now or 0.0
    ended = now if now is not None else max(moments, default=began)
    attempts = attempts_of.read(recorded)
    joined = [event for event in recorded.events if event["event"] == "agent"]
    num_devices = sum({event["agent_index"]: int(event.get("devices") or 0) for event in joined}.values())
    seconds = max(0.0, ended - began)
    billed, unit = _billed(recorded.booking, seconds)
    devices = _devices(recorded)
    made = [attempt.number for attempt in attempts if attempt.num_steps]
    of_ranks = lines.of_attempt(recorded.lines, made[-1]) if made else {}
    ranks, num_steps = _ranks(attempts)
    energies = [device.energy_joules for device in devices if device.energy_joules is not None]
    return Account(
        seconds=seconds,
        num_nodes=int(recorded.plan.get("num_nodes") or 0),
        num_ranks=max((attempt.num_ranks for attempt in attempts), default=0),
        num_devices=num_devices,
        device_hours=num_devices * seconds / 3600,
        billed=billed,
        billed_unit=unit,
        phases=attempts_of.of_run(recorded, attempts, began, ended),
        steps=_steps(attempts),
        training=training.of_run(recorded, attempts),
        lines=tuple(lines.shares(of_ranks)),
        stragglers=tuple(stragglers.find([{} for _ in ranks], ranks, num_steps, of_ranks)),
        threads_beside=stragglers.threads_beside(ranks),
        alternating=stragglers.alternating_in(recorded.samples, attempts[-1].number if attempts else -1),
        devices=devices,
        energy_joules=sum(energies) if energies else None,
        growths=tuple(growth.find(recorded.samples)),
        attempts=tuple(attempts),
    )


def _billed(booking: dict[str, Any], seconds: float) -> tuple[float | None, str]:
    billed, minutes = booking.get("billed"), booking.get("minutes")
    if not isinstance(billed, (int, float)) or not minutes:
        return None, ""
    return billed * seconds / (60 * minutes), str(booking.get("billed_unit", ""))


def _steps(attempts: list[Attempt]) -> StepStatistics | None:
    number = sum(attempt.num_steps for attempt in attempts)
    if not number:
        return None
    timed = [attempt for attempt in attempts if attempt.first_step is not None and attempt.last_step is not None]
    passed = sum((attempt.last_step or 0.0) - (attempt.first_step or 0.0) for attempt in timed)
    between = sum(attempt.num_steps - attempt.num_at_first for attempt in timed)
    times: Counter[int] = Counter()
    for attempt in attempts:
        times.update(attempt.step_times)
    median = _quantile(times, 0.5)
    whole = sum(seconds_of(bucket) * count for bucket, count in times.items())
    slow = sum(seconds_of(bucket) * count for bucket, count in times.items() if seconds_of(bucket) > SLOW * median)
    return StepStatistics(
        number=number,
        num_again=attempts_of.num_again(attempts),
        per_second=between / passed if passed > 0 else 0.0,
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


def _ranks(attempts: list[Attempt]) -> tuple[list[stragglers.Measures], int]:
    """Return the sums that all ranks of the last attempt have measured, and the number of their steps."""
    measured = [attempt for attempt in attempts if attempt.measures]
    if not measured or set(measured[-1].measures) != set(range(measured[-1].num_ranks)):
        return [], 0  # ranks of a node that was lost have told nothing
    ranks = [measured[-1].measures[rank] for rank in range(measured[-1].num_ranks)]
    return ranks, measured[-1].num_steps - measured[-1].num_at_first  # from the end of the first one on


def _devices(recorded: Recorded) -> tuple[DeviceUse, ...]:
    """Return the load of each device: from the report, or from the newest samples of a run that has none."""
    load: dict[str, list[dict[str, Any]]] = {}
    for sample in recorded.samples:
        load.update(sample.get("load", {}))
    load.update(recorded.report.get("load", {}))
    return tuple(
        DeviceUse(
            node=node,
            number=int(row["device"]),
            mean=float(row["mean"]),
            most=int(row["most"]),
            looks=row["looks"],
            energy_joules=float(row["energy_joules"]) if "energy_joules" in row else None,
        )
        for node, rows in sorted(load.items())
        for row in rows
    )
