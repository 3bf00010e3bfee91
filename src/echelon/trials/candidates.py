"""Run some steps of a script with what may shorten them, and without, for `echelon profile --try`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean, variance
from typing import Any

from echelon.errors import EchelonError
from echelon.host import Host
from echelon.launch.failure import REFUSED_EXIT_CODE
from echelon.launch.run_directory import shared_folder
from echelon.monitor.account import Account
from echelon.monitor.advice import LARGE_SHARE
from echelon.monitor.recorded import Recorded
from echelon.monitor.traces.verdict import COMMUNICATION, INPUT, TraceVerdict
from echelon.monitor.training import DATA
from echelon.plan import exchange
from echelon.trials import measured, own_runs, scaling, scratch
from echelon.trials.question import STRONG, Question
from echelon.trials.records import BenchmarkStart
from echelon.units import counted, rows_of, step_time

NUM_STEPS, NUM_TIMED = 50, 10
"""The steps of a trial, and the last ones, which are timed. Before, ranks try sizes of buckets and compare steps with
one device, and workers of a DataLoader have batches that they made during the start.
"""
FEWEST_WORKERS = 2
LEAST_GAIN = 0.03
NUM_ERRORS = 2.0  # a gain counts if it is larger than so many standard errors
LESS_EXCHANGE = {"--compress bf16": "other last digits", f"--sync-every {NUM_TIMED}": "another training"}
"""Options that make ranks send less, each with its price; ranks meet once in the steps that are timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedChange:
    """A change of a run that may shorten its steps."""

    name: str
    price: str = ""
    options: tuple[str, ...] = ()
    """Of `echelon run`."""
    loader_workers: int = 0
    """The least workers of each DataLoader; 0: unchanged."""


UNCHANGED = TriedChange(name="no change")
NOTHING = "no change had an effect: echelon run refused it, or the DataLoader reads a stream"
HINT = "echelon profile without --try"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A run with a candidate."""

    candidate: TriedChange
    seconds: tuple[float, ...]
    """Of the timed steps; empty if the run failed."""
    failure: str = ""
    has_effect: bool = True
    """Whether the run trained with the candidate: `echelon run` may refuse it, and loaders of streams keep theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """The runs with candidates, and the timed steps of the runs without: one before them, and one after."""

    tried: tuple[Trial, ...]
    without: tuple[tuple[float, ...], ...]

    def helps(self, trial: Trial) -> bool:
        """Say whether a step is shorter by more than the steps, and the runs without a candidate, differ."""
        if trial.failure:
            return False
        before, after = map(fmean, self.without)
        steps = tuple(chain(*self.without))
        error = (variance(steps) / len(steps) + variance(trial.seconds) / len(trial.seconds)) ** 0.5
        least = max(abs(before - after), NUM_ERRORS * error, LEAST_GAIN * fmean(steps))
        return bool(fmean(steps) - fmean(trial.seconds) > least)

    def text(self) -> str:
        sentences = [self._sentence(trial) for trial in self.tried] or [NOTHING]
        return "".join(f"{line}\n" for line in rows_of("tried", sentences))

    def as_plain(self) -> list[dict[str, Any]]:
        return [
            {
                "candidate": trial.candidate.name,
                "failure": trial.failure,
                "step_seconds": fmean(trial.seconds) if trial.seconds else None,
                "step_seconds_without": [fmean(steps) for steps in self.without],
                "helps": self.helps(trial),
            }
            for trial in self.tried
        ]

    def _sentence(self, trial: Trial) -> str:
        name = trial.candidate.name + (f" ({trial.candidate.price})" if trial.candidate.price else "")
        if trial.failure:
            return f"{name}: failed: {trial.failure}"
        took = f"{step_time(fmean(trial.seconds))} a step"
        if self.helps(trial):
            return f"{name}: {took} instead of {step_time(fmean(chain(*self.without)))}"
        least, most = sorted(map(fmean, self.without))
        return f"{name}: no clear gain: {took}, and {step_time(least)} to {step_time(most)} without it"


def candidates(verdicts: Sequence[TraceVerdict], recorded: Recorded, account: Account) -> list[TriedChange]:
    """Return what may shorten the steps of a profiled run, and what `echelon run` accepts for it."""
    training = account.training
    if training is None:
        return []
    chosen = []
    waiting = max([training.share(DATA), *(verdict.shares[INPUT] for verdict in verdicts)])
    if waiting >= LARGE_SHARE and training.loader_workers is not None:
        number = max(FEWEST_WORKERS, 2 * training.loader_workers)
        chosen.append(TriedChange(name=f"num_workers={number}", loader_workers=number))
    if min(verdict.shares[COMMUNICATION] for verdict in verdicts) >= LARGE_SHARE:
        chosen += [
            TriedChange(name=words, price=price, options=tuple(words.split()))
            for words, price in LESS_EXCHANGE.items()
            if exchange.accepts(recorded.scale_options, words, saves=recorded.saves)
        ]
    return chosen


def question(script: Sequence[str], options: Sequence[str], *, is_module: bool, is_own: bool) -> Question:
    """Return what all trials have in common; the options are those of `echelon run`, with --scale."""
    return Question(
        script=script[0], arguments=tuple(script[1:]), is_module=is_module, is_own=is_own, sizes=(), mode=STRONG,
        num_steps=NUM_STEPS, warm_up=NUM_STEPS - NUM_TIMED, num_repeats=1, options=tuple(options), timeout="",
    )  # fmt: skip


def measure(asked: Question, chosen: Sequence[TriedChange], host: Host, say: own_runs.Say) -> Trials:
    """Run the script with each candidate, in a copy of the current folder, and twice without.

    A candidate without an effect is left out. Raises EchelonError if the script fails without any.
    """
    runs: list[Trial] = []
    with shared_folder("try", "the runs write there") as folder:
        contents = scratch.look(os.getcwd()).kept_in(os.path.join(folder, "original"))
        for number, candidate in enumerate([UNCHANGED, *chosen, UNCHANGED]):
            say(f"{counted(NUM_STEPS, 'step')} with {candidate.name} …")
            runs.append(_run(asked, candidate, contents, os.path.join(folder, f"{number}"), host))
            if candidate is UNCHANGED and runs[-1].failure:
                raise EchelonError(f"--try: the run with {candidate.name} failed: {runs[-1].failure}", hint=HINT)
    first, *tried, last = runs
    return Trials(tried=tuple(run for run in tried if run.has_effect), without=(first.seconds, last.seconds))


def _run(asked: Question, candidate: TriedChange, contents: scratch.Contents, folder: str, host: Host) -> Trial:
    parent, name = os.path.split(folder)
    start = BenchmarkStart(num_ranks=0, repeat=1, folder=name, run=os.path.join(name, scaling.RUN))
    copy, run = scaling.copied(contents, parent, start), os.path.join(parent, start.run)
    words = ["--show", "none", "--run-dir", run, "--check", "off", *candidate.options]
    words += scaling.options(asked, folder, loader_workers=candidate.loader_workers)
    done = own_runs.finish(host, [*words, *scratch.command_in(asked, os.getcwd(), copy)], folder=copy)
    shutil.rmtree(copy, ignore_errors=True)
    if done.exit_code and not os.path.exists(os.path.join(run, "report.json")):
        start = replace(start, failure=scaling.first_line(done.stdout))
    result = measured.read(parent, start, asked)
    account, failure = result.account, result.failure
    number = account.steps.number if account is not None and account.steps is not None else 0
    if not failure and number < NUM_STEPS:
        failure = f"the script makes {counted(number, 'step')}, and a trial needs {NUM_STEPS}"
    workers = account.training.loader_workers if account is not None and account.training is not None else None
    is_applied = bool(failure) or candidate.loader_workers in (0, workers)
    return Trial(
        candidate=candidate,
        seconds=() if failure else result.seconds[-NUM_TIMED:],
        failure=failure,
        has_effect=is_applied and done.exit_code != REFUSED_EXIT_CODE,
    )
