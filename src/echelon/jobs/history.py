"""What the jobs of a chain did, how each ended, and whether the next one goes on: chain.jsonl.

{"event": "begin", "time": 1764208000.1, "job_id": "71", "node": "nid005001", "step": 120,
     "sources": {"train.py": "9f86d081…"}}
{"event": "end", "time": 1764208900.7, "job_id": "71", "step": 240, "outcome": "handed over", "exit_code": 85, …}
{"event": "over", "time": 1764208901.0, "why": "the training has ended", "exit_code": 0}
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from typing import Any

from echelon.environment import regular_files
from echelon.errors import UsageError
from echelon.launch import failure
from echelon.launch.failure import HANDED_OVER
from echelon.launch.order import SCRIPT
from echelon.monitor import account, recorded
from echelon.monitor.attempts import BEFORE, IMPORT, RESTARTS, START, num_again

NAME = "chain.jsonl"
_LEAST_RESERVE_SECONDS = 30
_RESERVE_FACTOR = 3  # the next save may wait for a busy file system
NUM_STALLED = 2  # so many jobs in a row end a chain if they save nothing new, or repeat more than they add


class History:
    """The records of a chain, oldest first."""

    def __init__(self, run_directory: str) -> None:
        self._path = os.path.join(run_directory, NAME)
        try:
            lines = regular_files.read_text(self._path).splitlines()
        except FileNotFoundError:
            lines = []
        # a job that was killed while it wrote has left a part of a line
        self.records = [record for line in lines if (record := regular_files.json_object(line))]

    def add(self, event: str, time: float, **values: object) -> None:
        record = {"event": event, "time": round(time, 3), **values}
        with open(self._path, "ab") as file:
            is_torn = file.tell() > 0 and not _ends_with_newline(self._path)
            file.write((b"\n" if is_torn else b"") + json.dumps(record).encode() + b"\n")
        self.records.append(record)

    @property
    def begins(self) -> list[dict[str, Any]]:
        return [record for record in self.records if record["event"] == "begin"]

    @property
    def num_jobs(self) -> int:
        """Return the number of jobs that have begun; a job that Slurm started again counts once."""
        return len({record["job_id"] for record in self.begins})

    @property
    def sources(self) -> dict[str, str] | None:
        """Return the files of the script when the last job began, with the SHA-256 of each; None: no job has begun."""
        return self.begins[-1].get("sources") if self.begins else None

    @property
    def over(self) -> dict[str, Any] | None:
        """Return why the chain is over; None: it goes on."""
        return next((record for record in self.records if record["event"] == "over"), None)

    def used_seconds(self, job_seconds: float) -> float:
        """Return the sum of the time of all jobs; of a killed one only its limit is known, or the next one's begin."""
        total, began = 0.0, None
        for record in self.records:
            if record["event"] in ("begin", "end") and began is not None:
                total += min(max(0.0, record["time"] - began), job_seconds if record["event"] == "begin" else 1e12)
                began = None
            if record["event"] == "begin":
                began = record["time"]
        return total + (job_seconds if began is not None else 0.0)

    def has_stalled(self, step: int) -> bool:
        """Say whether the last two jobs, which have ended, published no newer checkpoint; `step` is the newest now.

        >>> history = History("/nonexistent")
        >>> history.records = [{"event": "begin", "step": step} for step in (-1, 40, 40)]
        >>> history.has_stalled(40), history.has_stalled(60)
        (True, False)
        """
        steps = [record["step"] for record in self.begins[-NUM_STALLED:]]
        return len(steps) == NUM_STALLED and all(before >= step for before in steps)

    def reserve_seconds(self, otherwise: int) -> int:
        """Return the seconds to keep for a save: three times those that the last one took, and at least 30."""
        took = [record["save_seconds"] for record in self.records if record.get("save_seconds")]
        return max(_LEAST_RESERVE_SECONDS, round(_RESERVE_FACTOR * took[-1])) if took else otherwise


def _ends_with_newline(path: str) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


_OF_THE_MACHINE = frozenset({failure.LOST_NODE, failure.LOST_AGENT, failure.BY_SCHEDULER})
"""Causes that another job does not meet again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of one job."""

    text: str
    exit_code: int
    goes_on: bool
    save_seconds: float = 0.0
    """From the signal until all ranks had saved; 0: nobody measured it."""


def read(run_directory: str, exit_code: int) -> Outcome:
    """Judge the job whose supervisor returned `exit_code`."""
    report = regular_files.read_object(os.path.join(run_directory, "report.json"))
    charge, seconds = _order(os.path.join(run_directory, "events.jsonl"))
    cause = str(report.get("cause", ""))
    if cause == HANDED_OVER:
        return Outcome(text=HANDED_OVER, exit_code=exit_code, goes_on=True, save_seconds=seconds)
    if charge == SCRIPT:
        text = "the script took the signal before the end of the job, and ended"
        return Outcome(text=text, exit_code=exit_code, goes_on=True)
    if exit_code == 0:
        return Outcome(text="the training has ended", exit_code=0, goes_on=False)
    if charge:  # Slurm may end ranks before they have saved
        text = f"told to save and end, but did not: {cause or exit_code}"
        return Outcome(text=text, exit_code=exit_code, goes_on=True)
    preempted = cause == failure.INTERRUPTED and report.get("detail") == signal.SIGTERM.name
    return Outcome(
        text=f"{cause}: {report.get('detail', '')}" if cause else f"exit code {exit_code}",
        exit_code=exit_code,
        goes_on=cause in _OF_THE_MACHINE or preempted,
    )


def _order(path: str) -> tuple[str, float]:
    """Return who was in charge of the last order, empty without one, and the seconds from it to the end."""
    charge, given, ended = "", 0.0, 0.0
    for event in regular_files.read_objects(path):
        if event.get("event") == "order":
            charge, given = str(event["charge"]), float(event["time"])
        elif event.get("event") == "exit":
            ended = float(event["time"])
    return charge, max(0.0, ended - given) if given and ended else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What jobs of a chain added to its training, and what they repeat."""

    num_new: int
    num_again: int
    """Steps that were computed and not saved: they are computed once more."""
    step_seconds: float
    loop_seconds: float
    """Of repeating the loop without computing."""
    start_seconds: float

    @property
    def again_seconds(self) -> float:
        return self.num_again * self.step_seconds

    @property
    def new_seconds(self) -> float:
        return self.num_new * self.step_seconds


def progress(run_directory: str, step: int, *, num_jobs: int) -> Progress | None:
    """Sum up the last jobs, which have ended; `step` is the newest saved now. None: too few jobs, or it is not known.

    A script that saves by itself may count other steps than those of its optimizers.
    """
    folders = [*recorded.earlier_jobs(run_directory), run_directory][-num_jobs:]
    try:
        records = [recorded.read(folder) for folder in folders]
        jobs = [account.of_run(record) for record in records]
    except UsageError:
        return None
    made = [[attempt for attempt in job.attempts if attempt.num_steps] for job in jobs]
    repeats = [each.repeat_seconds for attempts in made for each in attempts if each.continued_after]
    steps_per_second = jobs[-1].steps.per_second if jobs[-1].steps is not None else 0.0
    is_unchanged = all(record.scale_options for record in records) and None not in repeats
    if len(jobs) < num_jobs or not all(made) or not is_unchanged or not steps_per_second:
        return None
    saved = [*(attempts[0].continued_after for attempts in made), max(step, 0)]
    again = sum(
        num_again(attempts) + (0 if record.report.get("cause") == HANDED_OVER else max(0, attempts[-1].reached - kept))
        for attempts, record, kept in zip(made, records, saved[1:], strict=True)
    )
    return Progress(
        num_new=max(0, saved[-1] - saved[0]),
        num_again=again,
        step_seconds=1 / steps_per_second,
        loop_seconds=sum(filter(None, repeats)),
        start_seconds=sum(job.seconds_of(phase) for job in jobs for phase in (IMPORT, START, BEFORE, RESTARTS)),
    )
