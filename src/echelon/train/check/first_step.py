"""Compare first steps with those of one device: a child of rank 0 runs the script's own steps on whole batches.

The child is called the oracle. It is forked just before rank 0 first uses a device, or else when training begins, so
it runs the user's own code, not a model of it. The oracle has ended before rank 0 uses a device: no device is
ever used by both. It runs until every optimizer has stepped once, for ten steps at most. Dropout is off until then.
"""

import atexit
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .. import batch_norm, events, modules
from ..base_parallelism import Parallelism
from ..scaling_error import ScalingError
from ..wire import device as devices
from ..wire.gather import each_whole
from ..wire.oracle import NO_STEP, TOO_LARGE, Oracle
from . import compare, isolation
from .part_runs import Checked

MOST_STEPS = 10
CHANCE = 0.2
"""The distance from 1 of a factor that other random numbers may explain, where few features dominate."""
DRAWS = "each rank draws its own random numbers, for each sample or inside a model"
IN_USE = "echelon cannot fork a process that has used a GPU; echelon prove compares separate runs"
IN_THREAD = (
    "a thread of the script used a GPU first, so echelon cannot fork the process; echelon prove compares separate runs"
)
EXEC = "echelon cannot fork a rank that uses a GPU and was started by exec; echelon prove compares separate runs"
WORKERS_DRAW = "the loader's workers may draw random numbers"
_PREFIX = "first step: "
_WHY = "The first step and later ones are compared."
_NOT_COMPARED = "not compared with one device: %s"


class FirstStep:
    """The comparison, from the fork to its verdict; ranks other than 0 only keep dropout off."""

    def __init__(self, *, is_main: bool, say: Callable[[str], None]) -> None:
        self._is_main = is_main
        self._say = say
        self._oracle = Oracle()
        self._reports: dict[int, Any] = {}
        self._is_sent = False
        self._why_not = ""
        self._known = compare.KnownModules()
        self._switch_on: Callable[[], None] = lambda: None
        self._num_workers = 0
        self._num_steps = 0
        self._stepped: set[int] = set()
        self._seen: set[int] = set()
        """The ids of the parameters whose gradients were compared."""
        self._num_compared = 0
        self._num_left = 0
        self._worst = 0.0
        self._infinite = ""
        """The first parameter whose gradient is not finite, on one device too."""
        self._seconds = 0.0
        self.is_due = True
        self.is_open = False
        """Whether steps are compared now."""
        self.may_fork_for_device = True
        """Whether this process was forked from a process that had checked that a fork is safe."""
        self.syncs_batch_norm = False
        self.compares_buffers = True
        """Whether this rank has whole models, and so all their buffers."""
        self.keeps_dropout = False
        """Whether a continued run must have the same first step; models that draw are then not compared."""
        self.num_samples = 0
        """The largest number of samples that all ranks together had in one call of a model."""
        self.guesses: set[str] = set()
        """The random draws inside of models for which the rows of the batch are uncertain."""
        self.is_half = False
        """Whether an operation ran under autocast."""

    def listen(self, run: Checked) -> None:
        """Compare the steps of a run while the comparison is open."""

        def before(optimizer: torch.optim.Optimizer) -> None:
            if self.is_open:
                self.guesses, self.num_samples = run.draws.guesses, run.calls.num_samples
                with run.parallelism.shown():
                    self._before_step(run.parallelism, optimizer, was_drawn=run.generators.was_drawn)
            run.draws.is_compared &= self.is_open

        events.before_step.listen("first step", before, why=_WHY)

    @property
    def is_oracle(self) -> bool:
        """Whether this process is the oracle."""
        return self._oracle.is_here

    @property
    def is_too_large(self) -> bool:
        """Whether one device has too little memory for the model with the whole batch; rank 0 alone knows."""
        return self._oracle.why_not == TOO_LARGE

    def keep_dropout_off(self) -> None:
        """Leave dropout off for the whole run, because the run is compared step by step."""
        if self.is_due:
            self.is_due = False
            isolation.switch_off()

    def cancel(self, why: str) -> None:
        """Compare nothing, because no comparison is wanted; end the oracle."""
        self.leave(why)
        self.is_due = self.is_open = False
        self._switch_on()
        self._oracle.dismiss()

    def leave(self, why: str) -> None:
        """End the oracle where the script comes to an act of ranks alone."""
        if self.is_oracle:
            self._oracle.end(why)

    def send_ahead(self, *, before_device: bool) -> bool:
        """Fork the oracle once and return True in it. With `before_device`, return only after the end of the oracle."""
        if self.is_oracle or not self._is_main or not (self.is_due or self.is_open):
            return False
        if not self._is_sent:
            self._is_sent = True
            self._why_not = self._reason_against(before_device=before_device)
            self._known = compare.KnownModules(modules.living())
            if not self._why_not and self._oracle.fork():
                return True
        while before_device and self._oracle.is_out:
            self._keep(self._oracle.hear(patience_seconds=self._oracle.left_of_a_minute()))
        return False

    def _reason_against(self, *, before_device: bool) -> str:
        if devices.is_in_use():
            return IN_USE
        if not self.may_fork_for_device and (before_device or devices.kind() != devices.CPU):
            return EXEC
        return "" if threading.current_thread() is threading.main_thread() else IN_THREAD

    def on_end_of_oracle(self, act: Callable[[], None]) -> None:
        """Let the oracle clean up before it ends."""
        self._oracle.on_end(act)

    def begin(self) -> None:
        """Begin the comparison when training begins, on every rank and in the oracle."""
        if self.is_due:
            self.is_due = False
            self.is_open = True
            if not self.keeps_dropout:
                self._switch_on = isolation.switch_off()
            if self._is_main and not self.is_oracle:
                pid = os.getpid()
                atexit.register(lambda: self._finish() if self.is_open and os.getpid() == pid else None)

    def note_workers(self, num_workers: int) -> None:
        """Note that worker processes make the samples; they may draw random numbers that echelon does not see."""
        self._num_workers = max(self._num_workers, num_workers)

    def _before_step(self, parallelism: Parallelism, optimizer: torch.optim.Optimizer, *, was_drawn: bool) -> None:
        """Report or compare the gradients of an optimizer's first step; end the comparison after the last optimizer."""
        self._num_steps += 1
        place = parallelism.place_of(optimizer)
        if place not in self._stepped:
            self._stepped.add(place)
            parameters = parallelism.parameters_of(optimizer)
            self._seen.update(map(id, parameters))
            if self.is_oracle:
                self._report(place, parameters, was_drawn=was_drawn)
            else:
                self._compare(place, parameters)
        remaining = parallelism.all_but(self._stepped)
        self._num_left = sum(any(id(one) not in self._seen for one in parameters) for parameters in remaining)
        if not remaining or self._num_steps == MOST_STEPS:
            self._finish()

    def _report(self, place: int, parameters: list[nn.Parameter], *, was_drawn: bool) -> None:
        gradients = [None if one.grad is None else one.grad.detach().cpu() for one in parameters]
        buffers = {key: one.detach().cpu() for key, (_, one) in compare.buffers(parameters, self._known).items()}
        why_not = DRAWS if was_drawn else self._why_of_batch_norm()
        report = {"place": place, "why_not": why_not, "gradients": gradients, "buffers": buffers}
        self._oracle.report({**report, "marks": modules.marks(parameters)})

    def _why_of_batch_norm(self) -> str:
        return "" if self.syncs_batch_norm or not batch_norm.is_there(modules.living()) else batch_norm.OWN_STATISTICS

    def _keep(self, message: Any) -> None:
        if message is not None:
            self._reports[message["place"]] = message

    def _compare(self, place: int, parameters: list[nn.Parameter]) -> None:
        wholes = each_whole(one.grad for one in parameters if one.grad is not None)
        gradients = [None if one.grad is None else next(wholes) for one in parameters]
        if not self._is_main or self._why_not:
            return
        while place not in self._reports and self._oracle.is_out:
            self._keep(self._oracle.hear(patience_seconds=self._oracle.rest()))
        report = self._reports.pop(place, None)
        if report is None or report["why_not"]:
            self._why_not = report["why_not"] if report is not None else self._oracle.why_not or NO_STEP
            return
        self._seconds = self._oracle.seconds
        try:
            self._compare_with(report, parameters, gradients)
        except ScalingError as refusal:
            is_multiple = bool(refusal.factor) and abs(refusal.factor - 1) > CHANCE  # which chance does not make
            if not (self._num_workers or self.guesses) or is_multiple:
                self.cancel("")
                raise
            refusal.withdraw()
            guess = "the model draws {}, and echelon cannot tell which rows of the batch get them".format(
                min(self.guesses, default="")
            )
            self._why_not = guess if self.guesses else WORKERS_DRAW

    def _compare_with(self, report: Any, parameters: list[nn.Parameter], gradients: list[Any]) -> None:
        slack = 1.0 if self._num_steps == 1 else compare.LATER
        norm = compare.norm_of(report["gradients"])
        for place, theirs in enumerate(_in_order_of(modules.marks(parameters), report)):
            bound = compare.bound_of(parameters[place].dtype, self.num_samples, norm, is_half=self.is_half, slack=slack)
            self._worst = max(self._worst, compare.difference(parameters[place], gradients[place], theirs, bound))
            self._infinite = self._infinite or compare.name_of_infinite(parameters[place], theirs)
        if self.compares_buffers:
            ours = compare.buffers(parameters, self._known)
            compare.compare_buffers(ours, report["buffers"], is_half=self.is_half)
        self._num_compared += 1

    def _finish(self) -> None:
        """End the comparison and print its result."""
        self.is_open = False
        self._switch_on()
        if self.is_oracle:
            self._oracle.end()
        self._oracle.dismiss()
        if self._is_main and self._stepped:
            self._say(_PREFIX + self._verdict())

    def _verdict(self) -> str:
        num_compared, num_all = self._num_compared, len(self._stepped) + self._num_left
        if not num_compared:
            return _NOT_COMPARED % self._why_not
        equal = f"equals that of one device to {self._worst:.0e} ({self._seconds:.1f} s)"
        if self._infinite:
            equal = f"not compared in full: the gradient of {self._infinite} is not finite, on one device either"
        if num_all == 1:
            return equal
        if num_compared == num_all:
            return f"{equal}, for each of {num_all} optimizers"
        why = self._why_not or f"the optimizer did not step in the first {self._num_steps} steps"
        return f"{equal}, for {num_compared} of {num_all} optimizers; echelon did not compare the rest: {why}"


def _in_order_of(marks: list[str], report: Any) -> list[Any]:
    """Return the gradients of a report in the order of these weights: a set has another one in each process."""
    known = dict(zip(report["marks"], report["gradients"], strict=False))
    if len(known) == len(marks) and set(known) == set(marks):
        return [known[mark] for mark in marks]
    gradients: list[Any] = report["gradients"]
    return gradients
