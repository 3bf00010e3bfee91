"""A sweep as a job: what `echelon submit … -- echelon sweep …` reads, and what one job of a chain does with it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from echelon.cli import sweep_options as sweep
from echelon.cli.options import OPTIONS, Option, scan
from echelon.cli.run import read_job
from echelon.errors import UsageError
from echelon.host import Host
from echelon.jobs.course import ChainJob
from echelon.jobs.history import Outcome
from echelon.jobs.settings import Chain
from echelon.launch.run_directory import newest_step
from echelon.node.order import WARNINGS
from echelon.orders.checkpoint import SUBFOLDER
from echelon.script.reading import of_job
from echelon.trials.sweep import loop, record, slots
from echelon.trials.sweep.trial import WAITING
from echelon.units import counted

if TYPE_CHECKING:
    from echelon.spec import Booking, Job

_HERE = slots.SweepSlot(name="", there=(), words=(), environ={}, num_ranks=1)


def job_of(words: list[str], values: Mapping[str, str], not_of_sweeps: Sequence[Option], host: Host) -> Job:
    """Return the job that a run of the sweep is; raise UsageError for what `echelon sweep` or its runs will refuse."""
    of_runs = {option.key for option in sweep.OF_RUN}
    for option in not_of_sweeps:
        if option.key in values:
            name, is_of_runs = option.names[-1], option.key in of_runs
            raise UsageError(
                f"{name} {'is an option of the runs of the sweep' if is_of_runs else 'does not go with a sweep'}",
                hint=f"-- echelon sweep {name} …" if is_of_runs else f"remove {name}",
            )
    scanned = sweep.HELP.scan(words)
    earlier, scanned, trials = sweep.opened(words, scanned)
    question = sweep.question_of(scanned, earlier)
    sweep.source_of(question, scanned.last, trials)
    loop.refuse_what_cannot_run(question, _HERE, host)
    return _job(question)


def _job(question: record.SweepQuestion) -> Job:
    return read_job(scan(loop.first_command(question, _HERE), OPTIONS))


def refuse_without_room(words: list[str], booking: Booking) -> None:
    """Raise UsageError if a node of the job has too few devices for a run."""
    scanned = sweep.HELP.scan(words)
    slots.of_node("a node of the job", booking.devices_per_node, (), sweep.asked(scanned.last), {})


def folder_option(words: list[str]) -> str:
    """Return the option that makes the run directory of the job the folder of the sweep; empty if it has another."""
    values = sweep.HELP.scan(words).values
    return "" if {"out", "resume"} & values.keys() else "--out"


class SweepJob(ChainJob):
    """One job of a chain whose jobs go on with a sweep."""

    KIND, NO_PROGRESS = "sweep", "ended no trial and saved no step"

    def __init__(self, chain: Chain, words: list[str], host: Host, say: Callable[[str], None]) -> None:
        scanned = sweep.HELP.scan(words)
        self._sweep = scanned.last.get("resume") or scanned.last["out"]
        earlier, again, _ = sweep.opened(words, scanned)
        question = sweep.question_of(again, earlier)
        super().__init__(chain, of_job(_job(question)), os.path.join(self._sweep, record.NAME), host, say)

    def _step(self) -> int:
        """Return the number of results and of saved steps; it grows with each job that is not in vain."""
        if not os.path.exists(self._folder):
            return -1
        runs = [path for path in os.scandir(self._sweep) if path.name.startswith("trial-")]
        return self._num_results() + sum(max(0, newest_step(os.path.join(path, SUBFOLDER))) for path in runs)

    def _place(self, step: int) -> str:
        num_results = self._num_results()
        steps = f" and {counted(step - num_results, 'step')}" if step > num_results else ""
        return f"after {counted(num_results, 'trial')}{steps}"

    def _num_results(self) -> int:
        return sum(trial.state != WAITING for trial in record.read(self._sweep)[1])

    def _outcome(self, exit_code: int) -> Outcome:
        is_told = exit_code in [128 + number for number in WARNINGS]
        left = [trial for trial in record.read(self._sweep)[1] if trial.state == WAITING]
        text = f"ended {self._place(self._step())}" if is_told or left else "all trials have a result"
        return Outcome(text=text, exit_code=exit_code, goes_on=is_told or bool(left))

    def _again(self, *more: str) -> str:
        made_by = shlex.split(self._chain.made_by)
        resources = made_by[: made_by.index("--")]
        return shlex.join([*resources, *more, "--", "echelon", "sweep", "--resume", os.path.relpath(self._sweep)])
