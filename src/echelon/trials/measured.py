"""Read a run of the benchmark: the seconds of its steps, its time by phase, and why it failed."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from echelon.environment import regular_files
from echelon.errors import UsageError
from echelon.launch import runs
from echelon.launch.failure import REFUSED, last_words
from echelon.monitor import account as accounts
from echelon.monitor import recorded as records_of
from echelon.monitor.account import Account
from echelon.monitor.recorded import Recorded
from echelon.orders import bench
from echelon.trials.question import Question
from echelon.trials.records import BenchmarkStart
from echelon.units import counted

MOST_BYTES = 1 << 28
TAIL_BYTES = 1 << 16
FEWEST_STEPS = 5  # the steps after the warm-up that a rate needs
WARM_SHARE = 0.4  # of few steps, the warm-up takes at most this part
TIMED_OUT = 124
UNFINISHED = "has not ended yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One run as it was."""

    num_ranks: int
    num_nodes: int
    """0: unknown."""
    num_cores: int
    """Of the node with the fewest; 0: unknown."""
    num_devices: int
    seconds: tuple[float, ...]
    """Of each step after the warm-up; empty where the run failed."""
    account: Account | None
    failure: str
    """Empty: none."""

    @property
    def is_unfinished(self) -> bool:
        """Whether the run goes on, or waits in a queue."""
        return self.failure == UNFINISHED

    @property
    def rate(self) -> float:
        """Steps a second after the warm-up."""
        return len(self.seconds) / sum(self.seconds)

    @property
    def utilisation(self) -> float | None:
        """The mean load of the devices in per cent; None where it was not seen."""
        devices = self.account.devices if self.account is not None else ()
        return sum(device.mean for device in devices) / len(devices) if devices else None


def parts_of(account: Account | None) -> dict[str, float]:
    """Return the seconds within the steps by part, such as "data" and "communication"; empty where they are unknown."""
    training = account.training if account is not None else None
    return dict(training.parts) if training is not None else {}


def samples_per_second(run: MeasuredRun) -> float | None:
    """Return the samples that all ranks trained on in a second after the warm-up; None where they are unknown."""
    account = run.account
    training, steps = (account.training, account.steps) if account is not None else (None, None)
    if training is None or training.samples_per_second is None or steps is None or not steps.per_second:
        return None
    return training.samples_per_second / steps.per_second * run.rate


def steady(seconds: tuple[float, ...], warm_up: int) -> tuple[float, ...]:
    """Return the steps after the warm-up; of few steps, the warm-up is the first 40 %.

    `seconds` has the steps from the second one on.

    >>> steady((9.0, 1.0, 1.0, 1.0, 1.0), 40)
    (1.0, 1.0, 1.0, 1.0)
    """
    return seconds[max(0, _num_warm(len(seconds) + 1, warm_up) - 1) :]


def _num_warm(num_steps: int, warm_up: int) -> int:
    return min(warm_up, int(WARM_SHARE * num_steps))


def read(folder: str, start: BenchmarkStart, question: Question) -> MeasuredRun:
    """Return the steps, the phases and the failure of a run of the benchmark in `folder`."""
    path = os.path.join(folder, start.run)
    try:
        recorded = records_of.read(path)
        account = accounts.of_run(recorded) if recorded.events else None
        seconds = _seconds(os.path.join(folder, start.folder, bench.SECONDS_FILE))
    except UsageError as error:
        return _failed(start, error.message)
    failure = start.failure or _failure(recorded, question)
    counted_steps = steady(seconds, question.warm_up)
    if not failure and os.path.exists(os.path.join(folder, start.folder, bench.ALONE_FILE)):
        failure = "each rank trained alone: the script never initialized torch.distributed"
    if not failure and len(counted_steps) < FEWEST_STEPS:
        failure = _too_few(len(seconds), question.warm_up, account)
    agents = [event for event in recorded.events if event["event"] == "agent"]
    return MeasuredRun(
        num_ranks=start.num_ranks,
        num_nodes=account.num_nodes if account is not None else 0,
        num_cores=min((int(agent.get("cores") or 0) for agent in agents), default=0),
        num_devices=account.num_devices if account is not None else 0,
        seconds=() if failure else counted_steps,
        account=account,
        failure=failure,
    )


def _failed(start: BenchmarkStart, why: str) -> MeasuredRun:
    return MeasuredRun(
        num_ranks=start.num_ranks, num_nodes=0, num_cores=0, num_devices=0, seconds=(), account=None, failure=why
    )


def _seconds(path: str) -> tuple[float, ...]:
    """Return the seconds of the steps; the last line of a killed run may be cut."""
    try:
        text = regular_files.read(path, most_bytes=MOST_BYTES).decode("ascii", "replace")
    except OSError:
        return ()
    lines = text.split("\n")[:-1]
    try:
        seconds = tuple(float(line) for line in lines)
    except ValueError:
        raise UsageError(f"{path} has a line that is no number of seconds", hint="measure again") from None
    if not all(math.isfinite(value) and value > 0 for value in seconds):
        raise UsageError(f"{path} has seconds that are not more than 0", hint="measure again")
    return seconds


def _failure(recorded: Recorded, question: Question) -> str:
    """Return why a run failed; one that its own time limit cut has not failed."""
    report = recorded.report
    if not report:
        is_broken = os.path.isdir(recorded.path) and runs.read(recorded.path).state == "broken off"
        return "the run was broken off" if is_broken else UNFINISHED
    exit_code = int(report.get("exit_code") or 0)
    if not exit_code or (exit_code == TIMED_OUT and question.timeout and report.get("cause") == "time limit"):
        return ""
    return why_failed(recorded.path, report)


def why_failed(path: str, report: Mapping[str, Any]) -> str:
    """Return the cause of a run's failure, and the last word of the rank that failed first."""
    number = max(1, int(report.get("attempts") or 1)) - 1
    log = os.path.join(path, "logs", f"attempt-{number}", f"rank-{report.get('rank', 0)}.log")
    told = [report.get("cause"), report.get("detail") or _last_word(log, is_refusal=report.get("cause") == REFUSED)]
    return ": ".join(str(word) for word in told if word) or f"exit code {report.get('exit_code')}"


def _last_word(log: str, *, is_refusal: bool) -> str:
    """Return the exception at the end of a rank's log, or the first line of what echelon refused; empty without."""
    try:
        with regular_files.opened(log) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = last_words(file.read(TAIL_BYTES).decode("utf-8", "replace"))
    except OSError:
        return ""
    flush_left = [line for line in lines if line and not line.startswith(" ")]
    return flush_left[0 if is_refusal else -1] if flush_left else ""


def _too_few(num_seconds: int, warm_up: int, account: Account | None) -> str:
    steps = num_seconds + 1 if num_seconds else account.steps.number if account is not None and account.steps else 0
    least = next(number for number in count(1) if number - _num_warm(number, warm_up) >= FEWEST_STEPS)
    if not steps:
        return "no optimizer of PyTorch made a step in the process of rank 0"
    return f"{counted(steps, 'step')}, and a rate needs at least {least}"
