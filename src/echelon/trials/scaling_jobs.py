"""Submit a job for each run of a scaling benchmark; each job starts when the one before it has ended."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace

from echelon.errors import EchelonError, RunError
from echelon.host import Host
from echelon.scheduler.slurm import queue
from echelon.trials import measured, own_runs, records, scratch
from echelon.trials.measured import MeasuredRun
from echelon.trials.own_runs import Say
from echelon.trials.question import Question
from echelon.trials.records import BenchmarkStart
from echelon.trials.scaling import COMMAND, copied, options, starts_of
from echelon.units import counted


def refuse_what_cannot_run(question: Question, resources: Sequence[str], host: Host) -> None:
    """Raise UsageError, before anything is submitted, for a size that `echelon submit` will not accept."""
    for size in question.sizes:
        words = [*resources, "--gpus", str(size.num_ranks), *options(question, "."), *question.command]
        own_runs.refuse_what_cannot_run(host, words, command=COMMAND, verb="submit")


def submit(question: Question, resources: Sequence[str], host: Host, say: Say, folder: str) -> list[BenchmarkStart]:
    """Submit all jobs; each has its own copy of the current folder. Return them with their numbers.

    Raise RunError if Slurm refuses one; the jobs before it stay in the queue.
    """
    contents = scratch.look(os.getcwd()).kept_in(os.path.join(folder, "original"))
    starts: list[BenchmarkStart] = []
    for start in starts_of(question):
        after = ["--after-any", starts[-1].job] if starts else []
        words = [
            "--json", *resources, *after, "--gpus", str(start.num_ranks),
            *options(question, os.path.join(folder, start.folder)),
        ]  # fmt: skip
        copy = copied(contents, folder, start)
        done = own_runs.finish(
            host, [*words, *scratch.command_in(question, os.getcwd(), copy)], folder=copy, verb="submit"
        )
        told = next((line for line in done.stdout.splitlines() if line.startswith("{")), "")
        if done.exit_code or not told:
            waiting = f"; {counted(len(starts), 'job')} before it: {', '.join(each.job for each in starts)}"
            raise RunError(
                f"the job on {counted(start.num_ranks, 'rank')} was not submitted{waiting if starts else ''}",
                details=done.stdout.strip(),
            )
        fields = json.loads(told)
        run = os.path.relpath(fields["run_directory"], folder)
        starts.append(replace(start, job=str(fields["job_id"]), run=run))
        records.write(folder, question, starts)
        say(f"job {fields['job_id']}: {counted(start.num_ranks, 'rank')}")
    return starts


def _settled(run: MeasuredRun, start: BenchmarkStart, host: Host) -> MeasuredRun:
    """Return the run; of one without a report, Slurm says whether its job waits, runs, or ended before."""
    if not run.is_unfinished or not start.job:
        return run
    try:
        state = queue.state(host, start.job)
    except queue.UnknownJob:
        return replace(run, failure=f"job {start.job} ended without a report, and Slurm no longer knows it")
    except EchelonError:
        return run  # no Slurm here, or a busy one
    if state.is_over:
        return replace(run, failure=f"{state.end(start.job)} before the run ended")
    if state.can_never_start:
        return replace(run, failure=f"job {start.job} can never start: scancel {start.job}")
    return run


def read(folder: str, host: Host) -> tuple[Question, list[MeasuredRun]]:
    """Return the question and the runs of a benchmark from its folder; raise UsageError where there is none."""
    question, starts = records.read(folder)
    return question, [_settled(measured.read(folder, start, question), start, host) for start in starts]
