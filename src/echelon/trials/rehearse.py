"""Rehearse faults: an undisturbed run, then one run for each fault, each in a scratch copy of its own."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from echelon.environment import regular_files
from echelon.errors import RunError, UsageError
from echelon.host import Finished, Host
from echelon.node.order import CHAIN
from echelon.orders import codec, rehearsal
from echelon.orders.checkpoint import MEMORY
from echelon.orders.rehearsal import (
    DROP_NODE,
    FILL_DISK,
    FREEZE_RANK,
    KILL_AGENT,
    KILL_RANK,
    SIGNAL,
    TEAR_CHECKPOINT,
    Fault,
    Rehearsal,
)
from echelon.trials import own_runs, rehearsal_verdict, scratch
from echelon.trials.own_runs import Say, TriedScript
from echelon.trials.rehearsal_verdict import Records, RehearsalVerdict
from echelon.units import counted, size

TRACKERS = {
    "WANDB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "COMET_START_ONLINE": "0",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "offline",
    "MLFLOW_TRACKING_URI": "file:mlruns",
    "TRACKIO_SPACE_ID": "",
}
"""Variables that keep the records of trackers in the scratch copy."""
LEAST_SECONDS = 60.0  # what a disturbed run may take beside a multiple of the undisturbed one
LEAST_STEPS = 4
PACE_SECONDS = 0.1
"""The least seconds of a disturbed step: a save takes longer than the steps of a small training."""
MARGIN = 10.0
"""How much more than the run with other last bits a disturbed one may differ: that run is only one sample."""
_HEAD_BYTES = 1 << 20
_SLOW = re.compile(rb"^echelon: (note: a run that continues from this loop repeats .+)$", re.MULTILINE)
"""What the first save says of a loop whose variables cannot be put back (train.replay.jumps)."""
_OUTSIDE = re.compile(r"OutsideError: (the script would write .+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalQuestion(TriedScript):
    """What is rehearsed."""

    is_own: bool
    """Whether the script distributes itself: it runs to its end."""
    is_saved: bool
    """Whether echelon saves it: it is scaled, or calls echelon.checkpoints()."""
    num_steps: int
    kinds: tuple[str, ...]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """The run that all others are compared with."""

    num_steps: int
    num_ranks: int
    longest_step: float
    """In seconds."""
    seconds: float


class Rehearsing:
    """One undisturbed run, and the disturbed ones: call `begin`, then `verdicts`."""

    def __init__(self, question: RehearsalQuestion, host: Host, say: Say, folder: str) -> None:
        self._asked, self._host, self._say, self._folder = question, host, say, folder
        self._num_steps = question.num_steps
        self._original = os.getcwd()
        self._contents = scratch.look(self._original)
        self._linked = self._contents.state_of_linked()
        self._state = os.path.join(folder, "undisturbed", rehearsal.STATE_FILE)

    def begin(self) -> Undisturbed:
        """Run the script without a fault; raise RunError if it fails, and UsageError if it cannot be rehearsed."""
        contents = self._contents
        linked = f", links {len(contents.linked)}" if contents.linked else ""
        self._say(
            f"each run gets its own copy of this folder: {counted(len(contents.copied), 'file')}, "
            f"{size(contents.num_bytes)}{linked}; trackers are offline"
        )
        steps = self._asked.num_steps
        self._contents = self._contents.kept_in(os.path.join(self._folder, "original"))
        records, done, seconds = self._run("undisturbed", Rehearsal(steps=steps), "--max-restarts", "0")
        refusal = _OUTSIDE.search(done.stdout)
        if refusal:
            raise UsageError(refusal[1], hint="give the script a relative path for what it writes")
        if done.exit_code:
            raise RunError("the run without a fault failed:", details=own_runs.without_logs(done.stdout))
        num_steps = len(records.steps)
        if num_steps < LEAST_STEPS:
            raise UsageError(
                f"the script made {num_steps} steps of an optimizer, and a rehearsal needs {LEAST_STEPS}",
                hint="let it train for longer, and in its own process, with an optimizer of torch.optim",
            )
        run = os.path.join(self._folder, "undisturbed", "run")
        with regular_files.opened(os.path.join(run, "logs", "attempt-0", "rank-0.log")) as log:
            for slow in _SLOW.findall(log.read(_HEAD_BYTES)):
                self._say(slow.decode())
        report = regular_files.read_object(os.path.join(run, "report.json"))
        self._num_steps = num_steps
        return Undisturbed(
            num_steps=num_steps, num_ranks=int(report["ranks"]), longest_step=records.longest_step(), seconds=seconds
        )

    @cached_property
    def _bound(self) -> float:
        """The difference that rounding makes: each gradient of an undisturbed run has another last bit."""
        self._say(
            "the bits differ at the end, so a run with the last bits of gradients changed shows what rounding does …"
        )
        order = Rehearsal(steps=self._asked.num_steps, like=self._state, is_nudged=True)
        records, _, _ = self._run("nudged", order)
        return max(rehearsal_verdict.ROUNDING, MARGIN * float(records.end.get("difference", 0.0)))

    def verdicts(self, known: Undisturbed) -> Iterator[RehearsalVerdict]:
        """Rehearse one fault after the other."""
        for kind in self._asked.kinds:
            yield self._rehearse(kind, known)
            shutil.rmtree(os.path.join(self._folder, kind), ignore_errors=True)

    def _rehearse(self, kind: str, known: Undisturbed) -> RehearsalVerdict:
        mean = known.seconds / known.num_steps
        fault = draw(
            kind, self._asked.seed, num_ranks=known.num_ranks, num_steps=known.num_steps,
            step_seconds=min(mean, known.longest_step), is_own=not self._asked.is_saved,
        )  # fmt: skip
        ends_itself = self._asked.is_own or known.num_steps < self._asked.num_steps
        order = Rehearsal(
            fault=fault, steps=0 if ends_itself else known.num_steps, like=self._state,
            pace=max(2 * PACE_SECONDS, 5.0 / known.num_steps) if kind == SIGNAL else PACE_SECONDS,
        )  # fmt: skip
        records, done, _ = self._run(kind, order, *self._limits(kind, known))
        run = os.path.join(self._folder, kind, "run")
        if kind == SIGNAL and rehearsal_verdict.is_handed_over(run):
            records, done, _ = self._run(kind, order, *self._limits(kind, known), "--resume", run, name="successor")
        return rehearsal_verdict.judge(
            fault, records, run, num_steps=known.num_steps, exit_code=done.exit_code,
            bound=lambda: self._bound,
        )  # fmt: skip

    def _limits(self, kind: str, known: Undisturbed) -> list[str]:
        """Return the limits of a disturbed run, by the time of the undisturbed one."""
        hang = max(10.0, 5.0 * known.longest_step)
        limits = {"--timeout": LEAST_SECONDS + hang + 10.0 * known.seconds}
        if kind == FREEZE_RANK:
            limits["--hang-timeout"] = hang
        chosen = {name: seconds for name, seconds in limits.items() if name not in self._asked.options}
        return [word for name, seconds in chosen.items() for word in (name, f"{seconds:.0f}")]

    def _run(self, kind: str, order: Rehearsal, *options: str, name: str = "run") -> tuple[Records, Finished, float]:
        """Run the script in a scratch copy, or in the one that is there; return its records, end and seconds."""
        folder = os.path.join(self._folder, kind)
        copy = os.path.join(folder, "copy")
        if name == "run":
            os.mkdir(folder)
            self._contents.copy_to(copy)
        order = order._replace(folder=folder, scratch=self._folder, original=self._original)
        began = self._host.now()
        words = [*self._options(folder, name, order), *options, *scratch.command_in(self._asked, self._original, copy)]
        done = own_runs.finish(self._host, words, folder=copy)
        self._refuse_changed()
        return rehearsal_verdict.read(folder), done, self._host.now() - began

    def _options(self, folder: str, name: str, order: Rehearsal) -> list[str]:
        variables = {**TRACKERS, rehearsal.VARIABLE: codec.write(order)}
        if order.fault is not None and order.fault.kind == TEAR_CHECKPOINT:
            variables[MEMORY] = ""  # a state in memory would be used in place of the torn checkpoint
        variables["WANDB_DIR"] = folder
        training = _training_options(self._asked, self._num_steps)
        if order.fault is not None and order.fault.kind == SIGNAL:
            variables[CHAIN] = folder
        return [
            "--show", "none", "--run-dir", os.path.join(folder, name),
            *training, *own_runs.variables(variables, observes=self._asked.is_own), *self._asked.options,
        ]  # fmt: skip

    def _refuse_changed(self) -> None:
        """Stop if the script has changed a linked file of the user: C code may write through a link."""
        now = self._contents.state_of_linked()
        changed = [path for path, state in self._linked.items() if now.get(path) != state]
        if changed:
            raise UsageError(
                f"{os.path.join(self._original, changed[0])} was changed while the script ran; it is linked into the "
                "script's copy, because it is large",
                hint="let the script write a file with another name, or rehearse it in a folder without this file",
            )


def refuse_what_cannot_run(question: RehearsalQuestion, host: Host) -> None:
    """Raise UsageError, before anything is copied, for what `echelon run` will not accept."""
    words = [*_training_options(question, question.num_steps), *question.options, *question.command]
    own_runs.refuse_what_cannot_run(host, words, command="rehearse")


def _training_options(question: RehearsalQuestion, num_steps: int) -> list[str]:
    """Return the options by which echelon scales, saves and restarts the script."""
    if not question.is_saved:
        return ["--scale", "off", "--max-restarts", "3"]
    scale = [] if question.is_own or "--scale" in question.options else ["--scale", "data"]
    return [*scale, "--checkpoint-every", f"{interval(num_steps)}steps"]


OF_ANY_SCRIPT = (KILL_RANK, FREEZE_RANK, KILL_AGENT, DROP_NODE)
"""The faults that need no checkpoint of echelon's."""
_LONGEST_DELAY = 0.25


def interval(num_steps: int) -> int:
    """Return the steps between two checkpoints.

    >>> interval(20)
    5
    """
    return max(1, num_steps // 4)


def draw(kind: str, seed: int, *, num_ranks: int, num_steps: int, step_seconds: float, is_own: bool = False) -> Fault:
    """Return a fault at a step from which a training of `num_steps` steps can go on.

    A save lasts longer than some steps, so the moment may be in the middle of one: at most `_LONGEST_DELAY` seconds,
    or three steps, after the end of the drawn step. `step_seconds` is the time of a step. A script that distributes
    itself (`is_own`) has its own snapshots.

    >>> draw("kill-rank", 0, num_ranks=4, num_steps=20, step_seconds=0.01) == \
        draw("kill-rank", 0, num_ranks=4, num_steps=20, step_seconds=0.01)
    True
    """
    chance = random.Random(f"{seed} {kind}")
    first, last = (max(1, num_steps // 3), num_steps - 1) if is_own else _steps(kind, num_steps)
    rank = chance.randrange(num_ranks)
    step = chance.randint(first, max(first, last))
    longest = min(_LONGEST_DELAY, 3 * step_seconds)
    is_late = step > num_steps - 3 or chance.random() < 0.3  # the run must not end before the fault happens
    return Fault(kind, rank, step, delay=0.0 if is_late else round(chance.uniform(0.0, longest), 4))


def _steps(kind: str, num_steps: int) -> tuple[int, int]:
    """Return the first and the last step after which a fault may happen."""
    every = interval(num_steps)
    if kind == SIGNAL:  # and the run must not end before it has saved
        return 1, num_steps // 2
    if kind == FILL_DISK:  # and a save must follow
        return min(every + 1, num_steps - 1), num_steps // every * every - 1
    if kind == TEAR_CHECKPOINT:  # the one before is used
        return min(2 * every + 1, num_steps - 1), num_steps - 1
    return min(every + 1, num_steps - 1), num_steps - 1
