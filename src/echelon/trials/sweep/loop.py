"""The loop of a sweep: start the next trial as soon as a slot is free, hear what runs tell, and stop the bad ones."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from echelon.environment import regular_files
from echelon.host import Host
from echelon.launch import failure
from echelon.launch.run_directory import newest_step
from echelon.node.order import CHAIN
from echelon.orders.checkpoint import SUBFOLDER
from echelon.trials import measured, own_runs, scaling
from echelon.trials.sweep import record, trial
from echelon.trials.sweep.record import SweepQuestion
from echelon.trials.sweep.slots import SweepSlot
from echelon.trials.sweep.source import ListedTrials
from echelon.trials.sweep.space import VARIABLE, filled
from echelon.trials.sweep.table import SweepView
from echelon.trials.sweep.trial import MeasuredLoss, PrintedMetric, SweepTrial

if TYPE_CHECKING:
    from echelon.host.host import Process

LOOK_SECONDS = 1.0
TAIL_BYTES = 1 << 16
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)
"""What batch scripts let Slurm send before the time limit."""
_CUT_OFF = (failure.INTERRUPTED, failure.BY_SCHEDULER, failure.HANDED_OVER)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *WARNINGS)


def command_of(question: SweepQuestion, slot: SweepSlot, trial: SweepTrial) -> tuple[list[str], dict[str, str]]:
    """Return the words after `echelon run` for a trial, and the variables of its ranks."""
    run = os.path.join(question.folder, trial.run)
    own = {"trial": str(trial.number), "folder": run}
    # with --checkpoint-every, ranks that are told to end save first, as those of a chain of jobs
    saving = ["--env", f"{CHAIN}={run}"] if "--checkpoint-every" in question.words else []
    words = ["--run-dir", run, "-n", str(slot.num_ranks), *saving, *filled(question.words, {**trial.values, **own})]
    variables = {parameter.variable: trial.values[parameter.name] for parameter in question.parameters}
    return words, {**variables, **{VARIABLE + name.upper(): value for name, value in own.items()}}


def refuse_what_cannot_run(question: SweepQuestion, slot: SweepSlot, host: Host) -> None:
    """Raise UsageError, before anything is started, for a command line that `echelon run` will not accept."""
    own_runs.refuse_what_cannot_run(host, ["--nnodes", "1", *first_command(question, slot)], command="sweep")


def first_command(question: SweepQuestion, slot: SweepSlot) -> list[str]:
    """Return the words after `echelon run` for some values of the parameters."""
    values = {parameter.name: parameter.between(0.0) for parameter in question.parameters}
    return command_of(question, slot, SweepTrial(number=0, values=values, run="trial-0"))[0]


@dataclass(slots=True, kw_only=True)
class RunningTrial:
    """A trial on its slot."""

    trial: SweepTrial
    slot: SweepSlot
    process: Process
    began: float
    reader: PrintedMetric | MeasuredLoss
    tail: bytearray = field(default_factory=bytearray)
    is_told_to_end: bool = False
    is_stopped: bool = False
    """Whether it was worse than the median."""


class SweepLoop:
    """Runs the trials of a source; `trials` has those that are known so far."""

    def __init__(
        self, question: SweepQuestion, slots: Sequence[SweepSlot], source: ListedTrials, trials: list[SweepTrial],
        host: Host, view: SweepView, say: own_runs.Say,
    ) -> None:  # fmt: skip
        self.trials = trials
        self._question, self._source, self._host, self._view, self._say = question, source, host, view, say
        self._free = deque(slots)
        self._next = 0
        self._running: dict[int, RunningTrial] = {}
        self._messengers: list[Process] = []
        self._selector = selectors.DefaultSelector()
        self._caught: list[int] = []
        self._num_passed_on = 0
        self._looked = 0.0

    @property
    def exit_code(self) -> int:
        """Return that of a signal that left trials over; 0 if a trial ended well, else that of the first failure."""
        failed = [each.exit_code for each in self.trials if each.state == trial.FAILED]
        is_good = any(each.state == trial.ENDED for each in self.trials)
        num_results = sum(each.state != trial.WAITING for each in self.trials)
        is_cut_off = bool(self._caught) and num_results < self._source.num_trials
        return 128 + self._caught[0] if is_cut_off else 0 if is_good or not failed else failed[0]

    def run(self) -> None:
        """Run all trials to their ends, or until a signal comes."""
        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # by nohup
        heard = [number for number in ENDING if number != signal.SIGHUP or not ignored]
        old = {number: signal.signal(number, lambda number, _frame: self._caught.append(number)) for number in heard}
        try:
            self._write()
            self._start_trials()
            while self._running:
                for key, _ in self._selector.select(LOOK_SECONDS):
                    key.data()
                self._look()
        finally:
            for messenger in self._messengers:
                messenger.kill()  # a job that is cancelled starts no step any more, and srun would try for ever
                messenger.communicate()
            self._selector.close()
            self._view.clear()
            for number, handler in old.items():
                signal.signal(number, handler)

    def _start_trials(self) -> None:
        """Start trials as long as there are free slots and trials without a result."""
        while self._free and self._next < self._source.num_trials and not self._caught:
            following = self._source.trial(self._next)
            if self._next == len(self.trials):
                self.trials.append(following)
            self._next += 1
            if following.state == trial.WAITING:
                self._start(following, self._free.popleft())

    def _start(self, following: SweepTrial, slot: SweepSlot) -> None:
        saved = ""
        for again in count():
            name = f"trial-{following.number}{f'-{again}' if again else ''}"
            path = os.path.join(self._question.folder, name)
            if not os.path.exists(path):
                break
            if following.run and newest_step(os.path.join(path, SUBFOLDER)) >= 0:
                saved = path  # a run that goes on saves into the folder of the one before
        following.run, following.metric, following.place, following.course = name, None, 0.0, []
        words, variables = command_of(self._question, slot, following)
        if saved and "--checkpoint-every" in words:
            words = ["--resume", saved, *words]
        process = self._host.start([*slot.words, "run", *words], environ={**slot.environ, **variables})
        if process.stdout is None:
            return
        running = RunningTrial(
            trial=following, slot=slot, process=process, began=time.monotonic(),
            reader=PrintedMetric(self._question.metric) if self._question.metric else MeasuredLoss(path),
        )  # fmt: skip
        descriptor = process.stdout.fileno()
        self._running[descriptor] = running
        self._selector.register(descriptor, selectors.EVENT_READ, lambda: self._hear(descriptor, running))

    def _hear(self, descriptor: int, running: RunningTrial) -> None:
        data = os.read(descriptor, 1 << 16)
        running.tail += data
        del running.tail[:-TAIL_BYTES]
        self._take(running, data)
        if not data:
            self._selector.unregister(descriptor)
            del self._running[descriptor]
            self._conclude(running)
            self._free.append(running.slot)
            self._start_trials()

    def _take(self, running: RunningTrial, data: bytes | None) -> None:
        for report in running.reader.reports(data):
            running.trial.hear(report, self._question.sign)

    def _conclude(self, running: RunningTrial) -> None:
        """Note how a trial ended, and tell it."""
        ended, code = running.trial, running.process.wait() or 0
        if running.process.stdout is not None:
            running.process.stdout.close()
        ended.seconds = round(time.monotonic() - running.began, 1)
        ended.exit_code = code if code >= 0 else 128 - code
        path = os.path.join(self._question.folder, ended.run)
        report = regular_files.read_object(os.path.join(path, "report.json"))
        is_cut_off = bool(self._caught) or report.get("cause") in _CUT_OFF
        ended.state = trial.ENDED if code == 0 else trial.FAILED
        if running.is_stopped:
            ended.state = trial.STOPPED
        elif running.is_told_to_end or (code and is_cut_off):  # a script that then saves and ends has exit code 0
            ended.state = trial.WAITING
        elif code:
            said = scaling.first_line(running.tail.decode("utf-8", "replace"))
            ended.why = measured.why_failed(path, report) if report.get("exit_code") else said
        if ended.state != trial.WAITING:
            self._source.tell(ended)
            self._view.tell(ended, self._source.num_trials)
            self._looked = 0.0  # this has removed the table
        self._write()

    def _look(self) -> None:
        """Pass on signals; now and then read the losses, stop what is worse than the median, and draw the table."""
        while self._num_passed_on < len(self._caught):
            number = self._caught[self._num_passed_on]
            if not self._num_passed_on:
                self._view.clear()
                how = "hear it too, and no other begins" if number in WARNINGS else "end; a second kills them at once"
                self._say(f"{signal.Signals(number).name}: the trials {how}")
            self._num_passed_on += 1
            if number in WARNINGS and number in self._caught[: self._num_passed_on - 1]:
                continue  # a job of a chain repeats it
            for running in self._running.values():
                self._send(running, number)
        now, sign = time.monotonic(), self._question.sign
        if now - self._looked < LOOK_SECONDS:
            return  # a run that prints much costs no more looks
        self._looked = now
        for running in self._running.values():
            if self._question.stops or self._view.is_live:
                self._take(running, None)
            is_bad = self._question.stops and trial.is_worse_than_median(running.trial, self.trials, sign)
            if is_bad and not running.is_told_to_end:
                running.is_stopped = True
                self._send(running, signal.SIGTERM)
        self._view.show([(each.trial, each.slot.name, now - each.began) for each in self._running.values()])

    def _send(self, running: RunningTrial, number: int) -> None:
        """Send a signal to a run; on another node the first one by a step of its own, for srun would kill the run."""
        slot, pid = running.slot, ""
        if slot.there and not running.is_told_to_end:
            events = os.path.join(self._question.folder, running.trial.run, "events.jsonl")
            pids = [event["pid"] for event in regular_files.read_objects(events) if event.get("event") == "supervisor"]
            pid = str(pids[-1]) if pids else ""
        running.is_told_to_end = True
        if pid:
            command = [*slot.there, "sh", "-c", f"kill -{number} {pid}"]
            self._messengers.append(self._host.start(command, environ=slot.environ))
        else:
            running.process.send_signal(number)

    def _write(self) -> None:
        try:
            record.write(self._question, self.trials)
        except OSError as error:
            self._say(f"warning: {record.NAME} cannot be written: {error.strerror}")
