"""The folder of a sweep: `sweep.json` has its command line and its trials, also while it goes on."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import IO, Any

from echelon.environment import regular_files
from echelon.environment.agent_place import is_slurm_job
from echelon.errors import UsageError
from echelon.node import private
from echelon.trials.sweep.space import SweptParameter
from echelon.trials.sweep.trial import STATES, SweepTrial

NAME, LOCK = "sweep.json", "lock"
FORMAT = 1
MOST_BYTES = 1 << 28
JOB_SECONDS = 60.0  # a job of a chain may start while the trials of the one before still save


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepQuestion:
    """What a sweep tries, and what it compares."""

    folder: str
    """In which each trial has its run directory."""
    arguments: tuple[str, ...]
    """The words after `echelon sweep`."""
    parameters: tuple[SweptParameter, ...]
    words: tuple[str, ...]
    """Options of `echelon run`, and the script with its arguments; names in braces stand for values."""
    metric: str
    """A name that the script prints; empty: the loss that echelon measures."""
    sign: int
    """1: smaller is better; -1: larger is."""
    stops: bool
    """Whether trials that are worse than the median are stopped."""

    @property
    def metric_name(self) -> str:
        return self.metric or "loss"


def plain(question: SweepQuestion, trials: Sequence[SweepTrial]) -> dict[str, Any]:
    """Return the sweep as JSON has it, which has no number that is not finite."""
    kept = [trial if question.stops else replace(trial, course=[]) for trial in trials]  # a course may be long
    rows = [{**asdict(trial), "metric": trial.number_told} for trial in kept]
    told = {"metric": question.metric_name, "maximize": question.sign < 0, "trials": rows}
    return {"format": FORMAT, "folder": os.getcwd(), "arguments": list(question.arguments), **told}


def write(question: SweepQuestion, trials: Sequence[SweepTrial]) -> None:
    """Write the file, completely or not at all."""
    path = os.path.join(question.folder, NAME)
    private.write(path + ".part", json.dumps(plain(question, trials)).encode())
    os.replace(path + ".part", path)


def read(folder: str) -> tuple[list[str], list[SweepTrial]]:
    """Return the command line and the trials of an interrupted sweep; raise UsageError where there is none."""
    path = os.path.join(folder, NAME)
    why = "it is damaged, or another version of echelon has written it"
    try:
        fields = json.loads(regular_files.read(path, most_bytes=MOST_BYTES))
        if fields["format"] != FORMAT:
            raise ValueError
        started_in, arguments = str(fields["folder"]), list(map(str, fields["arguments"]))
        trials = [SweepTrial(**each) for each in fields["trials"]]
        if not {trial.state for trial in trials} <= set(STATES):
            raise ValueError
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{path} has no sweep: {error.strerror if isinstance(error, OSError) else why}",
            hint="echelon sweep --resume DIRECTORY   names the folder that the sweep printed",
        ) from None
    if started_in != os.getcwd():
        raise UsageError(
            f"the sweep in {folder} was started in {started_in}, and this is {os.getcwd()}",
            hint=f"cd {started_in}   and then: echelon sweep --resume {os.path.abspath(folder)}",
        )
    return arguments, trials


@contextmanager
def held(folder: str) -> Iterator[None]:
    """Make the folder, or take that of an earlier sweep, and let no other sweep use it; raise UsageError if not."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        lock = open(os.path.join(folder, LOCK), "a")  # noqa: SIM115
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}", hint="--out DIRECTORY") from None
    deadline = time.monotonic() + (JOB_SECONDS if is_slurm_job(os.environ) else 0.0)
    with lock:
        while not _is_locked(lock):
            if time.monotonic() >= deadline:
                raise UsageError(f"the sweep in {folder} still goes on", hint="wait for its end, or stop it")
            time.sleep(0.5)
        yield


def _is_locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # Lustre mounted without flock
    return True
