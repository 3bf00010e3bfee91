"""What the steps of a run were made of: data, computing, communication; samples a second; loss; peak memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from echelon.monitor.attempts import Attempt
from echelon.monitor.recorded import Recorded

DATA, BACKWARD, COMMUNICATION, OPTIMIZER, SAVES = "data", "backward", "communication", "optimizer", "saves"
CHECKS = "checks"
REST = "other lines"
"""The time of the steps in which no other part was measured: the report tells it by the lines of the script."""
PARTS = {
    DATA: "data_seconds",
    BACKWARD: "backward_seconds",
    COMMUNICATION: "communication_seconds",
    OPTIMIZER: "optimizer_seconds",
    SAVES: "save_seconds",
    CHECKS: "check_seconds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTraining:
    """What ranks measured between the ends of their first and last steps."""

    parts: dict[str, float]
    """The seconds of each part, as a mean over the ranks; all add up to the time of the steps."""
    samples_per_second: float | None
    """Of all ranks; None: no DataLoader, or its batches do not tell."""
    tokens_per_second: float | None
    first_loss: float | None
    last_loss: float | None
    """Of the newest step; None: it is not known, or not finite."""
    losses_not_finite: int | None
    """The steps whose loss was not finite, on the rank with the most."""
    loader_workers: int | None
    """The workers of the newest DataLoader; 0: the rank itself loads."""
    compile_seconds: float | None
    """The time of torch.compile on the rank that compiled longest, also before the first step."""
    graphs: int | None
    """What it compiled: functions, and each again for other shapes; on the rank with the most."""
    passes_per_step: float | None
    """How often a step goes backward."""
    threads: int | None
    """Of PyTorch on the processor, for one rank."""
    core_wait: float | None
    """The part of the steps in which a rank could run and had no core: its main thread, or the mean of all threads."""
    peak_allocated_bytes: int | None
    """The most bytes of tensors on a device, of all ranks."""
    peak_reserved_bytes: int | None
    peak_resident_bytes: int | None
    """The most memory of the node that one rank's process used."""

    @property
    def seconds(self) -> float:
        """The time of the steps."""
        return sum(self.parts.values())

    def share(self, *parts: str) -> float:
        return sum(self.parts.get(part, 0.0) for part in parts) / self.seconds if self.seconds else 0.0


def of_run(recorded: Recorded, attempts: Sequence[Attempt]) -> MeasuredTraining | None:
    """Return what the steps were made of; None if no rank has told it."""
    told = [list(attempt.measures.values()) for attempt in attempts if any(attempt.measures.values())]
    if not told:
        return None
    losses = [float(sample["loss"]) for sample in recorded.samples if isinstance(sample.get("loss"), (int, float))]
    last = told[-1]
    return MeasuredTraining(
        parts=_parts(told),
        samples_per_second=_rate(told, "samples"),
        tokens_per_second=_rate(told, "tokens"),
        first_loss=losses[0] if losses else None,
        last_loss=_mean(ranks["loss"] for ranks in last if "loss" in ranks),
        losses_not_finite=_whole([last], "losses_not_finite"),
        loader_workers=_whole(told, "loader_workers"),
        compile_seconds=_most(told, "compile_seconds"),
        graphs=_whole(told, "graphs"),
        passes_per_step=_passes(attempts),
        threads=_whole(told, "threads"),
        core_wait=_core_wait(told),
        peak_allocated_bytes=_whole(told, "peak_allocated_bytes"),
        peak_reserved_bytes=_whole(told, "peak_reserved_bytes"),
        peak_resident_bytes=_whole(told, "peak_resident_bytes"),
    )


Told = list[list[dict[str, float]]]  # for each attempt the measures of its ranks


def _parts(told: Told) -> dict[str, float]:
    """Return the mean over the ranks of an attempt, added up over the attempts."""
    parts: dict[str, float] = {}
    for ranks in told:
        whole = sum(measures.get("step_seconds", 0.0) for measures in ranks)
        sums = {part: sum(measures.get(name, 0.0) for measures in ranks) for part, name in PARTS.items()}
        if any(name in measures for measures in ranks for name in PARTS.values()):
            sums[REST] = max(0.0, whole - sum(sums.values()))
            for part, seconds in sums.items():
                parts[part] = parts.get(part, 0.0) + seconds / len(ranks)
    return {part: seconds for part, seconds in parts.items() if seconds}


def _rate(told: Told, name: str) -> float | None:
    """Return how many a second all ranks computed."""
    if not any(name in measures for ranks in told for measures in ranks):
        return None
    seconds = sum(_mean(measures.get("step_seconds", 0.0) for measures in ranks) or 0.0 for ranks in told)
    number = sum(measures.get(name, 0.0) for ranks in told for measures in ranks)
    return number / seconds if seconds else None


def _passes(attempts: Sequence[Attempt]) -> float | None:
    last = next(attempt for attempt in reversed(attempts) if any(attempt.measures.values()))
    passes = _most([list(last.measures.values())], "passes")
    return passes / (last.num_steps - 1) if passes is not None and last.num_steps > 1 else None


def _core_wait(told: Told) -> float | None:
    known = [measures for ranks in told for measures in ranks if "core_wait_seconds" in measures]
    whole = sum(measures.get("step_seconds", 0.0) for measures in known)
    return sum(map(_wait_of_rank, known)) / whole if whole else None


def _wait_of_rank(measures: dict[str, float]) -> float:
    """Return how long a rank that computes had no core: with one thread those beside it compute no step."""
    threads = measures.get("threads", 1.0)
    mean = measures.get("thread_wait_seconds", 0.0) / threads if threads > 1 else 0.0
    return min(max(measures["core_wait_seconds"], mean), measures.get("step_seconds", 0.0))


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None


def _most(told: Told, name: str) -> float | None:
    return max((measures[name] for ranks in told for measures in ranks if name in measures), default=None)


def _whole(told: Told, name: str) -> int | None:
    most = _most(told, name)
    return int(most) if most is not None else None
