"""The course of one job of a chain: it takes the lease, goes on with the training, and hands over to the next job."""

from __future__ import annotations

import os
import shlex
import signal
import socket
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import replace
from types import FrameType

from echelon.environment import agent_place
from echelon.errors import EchelonError, UsageError
from echelon.host import Host
from echelon.jobs import lease, settings
from echelon.jobs.history import NUM_STALLED, History, Outcome, progress, read
from echelon.jobs.settings import Chain
from echelon.launch.run_directory import newest_step
from echelon.node import order
from echelon.scheduler.slurm import batch
from echelon.script.reading import ScriptReading
from echelon.spec import Job
from echelon.units import counted

OF_JOB = ("plan.json", "events.jsonl", "report.json", "agent.json", "node.pyz", "samples.jsonl", "logs")
"""What the supervisor of one job writes; it is kept in jobs/N when the next job begins."""
REPEAT_SECONDS = 5.0  # a signal is lost before the supervisor listens; a repeated one does nothing
OVER = 0


class ChainOver(EchelonError):
    """The chain ends here; `exit_code` says how."""

    def __init__(self, message: str, *, exit_code: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


def with_chain(job: Job, chain: Chain, host: Host) -> Job:
    """Return the job as a part of a chain: it goes on from the latest checkpoint, and knows that others follow."""
    has = {*host.environ, *(name for name, _ in job.environ)}
    environ = ((order.CHAIN, chain.path), *variables(chain.name, has))
    checkpoints = job.checkpoints._replace(resumes=True) if job.checkpoints is not None else None
    return replace(job, checkpoints=checkpoints, environ=(*environ, *job.environ))


class ChainJob:
    """One job of a chain, from its lease to its successor."""

    KIND, NO_PROGRESS = "training", "published no new checkpoint"

    def __init__(
        self, chain: Chain, reading: ScriptReading | None, folder: str, host: Host, say: Callable[[str], None]
    ) -> None:
        self._chain, self._reading, self._host, self._say = chain, reading, host, say
        self._folder = folder
        """Where the training is saved; empty: its script saves by itself."""
        self._id = agent_place.job_id(host.environ)
        self._history = History(chain.path)

    def run(self, start: Callable[[], int]) -> int:
        """Go on with the training by `start`; return the exit code of this job."""
        # with --resume RUN, the checkpoints are those of another chain
        owners = {self._chain.path, *([os.path.dirname(self._folder)] if self._folder else [])}
        with ExitStack() as leases:
            for owner in sorted(owners):
                leases.callback(lease.take(owner, self._id, self._host).release)
            try:
                lease.refuse_living_run(self._chain.path)
                self._history = History(self._chain.path)
                ended = self._ended_before()
                return ended if ended is not None else self._part(start)
            except ChainOver as error:
                self._end(error.message, error.exit_code)
                raise

    def _ended_before(self) -> int | None:
        """Return the exit code of a job that came too late; None: the chain goes on."""
        over = self._history.over
        if over is not None:
            self._say(f"this chain is over: {over['why']}")
            self._cancel_waiting()
            return OVER
        return None

    def _part(self, start: Callable[[], int]) -> int:
        chain, history, step = self._chain, self._history, self._step()
        self._refuse_further(step)
        files = self._compare_sources()
        self._put_aside()
        node = socket.gethostname()
        history.add("begin", self._host.now(), job_id=self._id, node=node, step=step, sources=files)
        number = f"{history.num_jobs} of {chain.num_jobs}" if chain.num_jobs else str(history.num_jobs)
        self._say(f"chain {chain.name}: job {number}{f', goes on {self._place(step)}' if step >= 0 else ''}")
        self._queue_successor()
        reserve = history.reserve_seconds(chain.reserve_seconds)
        now = self._host.now()
        self._warn_in((batch.job_end(self._host.environ) or now + chain.job_seconds) - reserve - now)
        try:
            outcome = self._outcome(start())
        except EchelonError as error:
            if isinstance(error, UsageError) and history.num_jobs == 1:  # a command line that began a job is right
                raise ChainOver(error.message, exit_code=error.exit_code, hint=error.hint) from None
            self._say(f"error: {error}")
            outcome = Outcome(text=error.message, exit_code=error.exit_code, goes_on=True)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return self._after(outcome)

    def _after(self, outcome: Outcome) -> int:
        """Note how this job ended; return its exit code: 0 if another job goes on."""
        history, step = self._history, self._step()
        history.add("end", self._host.now(), job_id=self._id, step=step, outcome=outcome.text,
                    exit_code=outcome.exit_code, save_seconds=round(outcome.save_seconds, 3))  # fmt: skip
        if not outcome.goes_on:
            self._end(outcome.text, outcome.exit_code)
            return outcome.exit_code
        self._refuse_further(step)
        job = progress(self._chain.path, step, num_jobs=1) if self._folder else None
        if job is not None and job.start_seconds > job.new_seconds:
            self._say(
                f"note: this job started for {job.start_seconds:.0f} s, and made {counted(job.num_new, 'new step')} in "
                f"{job.new_seconds:.0f} s; jobs with a longer --time start less often"
            )
        if not self._queue_successor():
            raise ChainOver(
                f"the chain {self._chain.name} ends here: no job waits to go on with the {self.KIND}",
                exit_code=order.HANDED_OVER,
                hint=self._again(),
            )
        self._say(f"chain {self._chain.name}: the next job goes on{f' {self._place(step)}' if step >= 0 else ''}")
        return 0

    def _refuse_further(self, step: int) -> None:
        """Raise ChainOver if no further job may begin: no progress, or no job or no time is left."""
        chain, history = self._chain, self._history
        is_same_job = any(record["job_id"] == self._id for record in history.begins) and bool(self._id)
        is_ended = history.records[-1:] and history.records[-1]["event"] == "end"
        if self._folder and history.has_stalled(step):
            raise ChainOver(
                f"the last {NUM_STALLED} jobs of the chain {chain.name} {self.NO_PROGRESS}: "
                f"{f'it would go on {self._place(step)} again' if step >= 0 else 'there is none'}",
                exit_code=1,
                hint="echelon checkpoint ls; save more often than a job lasts: --checkpoint-every",
            )
        self._refuse_repetition(step)
        if chain.num_jobs and history.num_jobs >= chain.num_jobs and (is_ended or not is_same_job):
            raise ChainOver(
                f"the chain {chain.name} had {chain.num_jobs} jobs, and its {self.KIND} has not ended",
                exit_code=order.HANDED_OVER,
                hint=self._again(),
            )
        used = history.used_seconds(chain.job_seconds)
        if used + chain.job_seconds > chain.max_seconds:
            raise ChainOver(
                f"the jobs of the chain {chain.name} have used {_hours(used)} h, and a further one of "
                f"{_hours(chain.job_seconds)} h would exceed --max-hours {_hours(chain.max_seconds)}",
                exit_code=order.HANDED_OVER,
                hint=self._again(),
            )

    def _refuse_repetition(self, step: int) -> None:
        """Raise ChainOver if the last jobs repeated more than they added."""
        jobs = progress(self._chain.path, step, num_jobs=NUM_STALLED) if self._folder else None
        if jobs is None or jobs.again_seconds + jobs.loop_seconds <= jobs.new_seconds:
            return
        is_loop = jobs.loop_seconds > jobs.again_seconds
        raise ChainOver(
            f"the last {NUM_STALLED} jobs of the chain {self._chain.name} repeat more than they advance: "
            f"{counted(jobs.num_new, 'new step')} in {jobs.new_seconds:.0f} s; {counted(jobs.num_again, 'step')} in "
            f"{jobs.again_seconds:.0f} s that were not saved; {jobs.loop_seconds:.0f} s of repeating the loop",
            exit_code=1,
            hint=f"{self._again()}   {'a longer --time' if is_loop else 'a shorter --checkpoint-every'} wastes less",
        )

    def _compare_sources(self) -> dict[str, str]:
        """Say which files were edited; raise ChainOver unless the chain goes on anyway. Return the hashes of all."""
        files = settings.hashes(self._reading, os.getcwd())
        edited = settings.differences(self._history.sources, files)
        if not edited:
            return files
        if self._chain.resumes_anyway:
            self._say(f"note: {settings.listed(edited)} since the job before this one; it goes on (--resume-anyway)")
            return files
        raise ChainOver(
            f"{settings.listed(edited)} since the job before this one of the chain {self._chain.name}, "
            f"so this may be another {self.KIND}",
            exit_code=UsageError.exit_code,
            hint=self._again("--resume-anyway"),
        )

    def _again(self, *more: str) -> str:
        """Return the command that begins a new chain where this one ended."""
        words = shlex.split(self._chain.made_by)
        resumes = () if "--resume" in words else ("--resume", os.path.relpath(self._chain.path))
        return shlex.join([*words[:2], *more, *(resumes if self._step() >= 0 else ()), *words[2:]])

    def _put_aside(self) -> None:
        """Move the records of the job before this one to jobs/N."""
        past = [name for name in OF_JOB if os.path.lexists(os.path.join(self._chain.path, name))]
        if not past:
            return
        base, number = os.path.join(self._chain.path, "jobs"), 1
        while os.path.lexists(os.path.join(base, str(number))):
            number += 1
        os.makedirs(os.path.join(base, str(number)), mode=0o700)
        for name in past:
            os.rename(os.path.join(self._chain.path, name), os.path.join(base, str(number), name))

    def _step(self) -> int:
        """Return how far the training is saved; -1: not at all."""
        return newest_step(self._folder) if self._folder else -1

    def _place(self, step: int) -> str:
        return f"after step {step}"

    def _outcome(self, exit_code: int) -> Outcome:
        """Judge the end of this job, and whether another goes on."""
        return read(self._chain.path, exit_code)

    # The jobs that wait

    def _waiting(self) -> tuple[str, ...] | None:
        """Return the numbers of the jobs that wait; None: Slurm cannot be asked from here."""
        try:
            return batch.waiting(self._host, self._chain.name)
        except EchelonError:
            return None

    def _queue_successor(self) -> bool:
        """Queue the next job, unless one waits, or none may follow; say whether one waits now."""
        chain, history = self._chain, self._history
        if chain.num_jobs and history.num_jobs >= chain.num_jobs:
            return False
        if history.used_seconds(chain.job_seconds) + chain.job_seconds > chain.max_seconds:
            return False
        waiting = self._waiting()
        if waiting or (waiting is None and chain.num_at_submission > history.num_jobs):
            return True
        try:
            reserve = history.reserve_seconds(chain.reserve_seconds)
            number = batch.queue(self._host, chain.script, reserve)
        except EchelonError as error:
            self._say(
                f"warning: no job can be queued from here: {error.message}; `--chain N` queues all jobs when the chain "
                "is submitted"
            )
            return False
        self._say(f"job {number} waits to go on with the {self.KIND}")
        return True

    def _end(self, why: str, exit_code: int) -> None:
        """Record that the chain is over, and cancel the jobs that wait."""
        try:
            self._history.add("over", self._host.now(), why=why, exit_code=exit_code)
        except OSError as error:
            self._say(f"warning: {settings.NAME} cannot be completed: {error.strerror}")
        self._cancel_waiting()

    def _cancel_waiting(self) -> None:
        try:
            numbers = batch.cancel_waiting(self._host, self._chain.name)
        except EchelonError:
            return  # no Slurm command here: each of them ends as soon as it starts
        if numbers:
            self._say(f"cancelled job {', '.join(numbers)}, which waited to go on with the {self.KIND}")

    def _warn_in(self, seconds: float) -> None:
        """Send this process the signal before the limit; Slurm's own may come too late for the measured save."""

        def warn(_number: int, _frame: FrameType | None) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)

        signal.signal(signal.SIGALRM, warn)
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1.0), REPEAT_SECONDS)


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.4g}"


def variables(name: str, has: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return the variables that ranks get; what the user has set in `has` is left as it is.

    https://docs.wandb.ai/guides/runs/resuming
    https://docs.neptune.ai/logging/custom_run_id

    MLflow's run has to exist already, and Comet's `Experiment()` refuses a key that exists: their variables
    (MLFLOW_RUN_ID, COMET_EXPERIMENT_KEY) are the user's, and every job of the chain inherits them.
    """
    rows = []
    if "WANDB_RUN_ID" not in has:
        rows.append(("WANDB_RUN_ID", name))
    if "WANDB_RESUME" not in has:
        rows.append(("WANDB_RESUME", "allow"))
    if "NEPTUNE_CUSTOM_RUN_ID" not in has:
        rows.append(("NEPTUNE_CUSTOM_RUN_ID", name))
    return tuple(rows)
