"""Save an unchanged script's training as it goes, and continue it in a later process.

A checkpoint is made where a step is over: where a loop asks for its next batch, or after the step of the last optimizer
if no loop over a loader trains. It has the tensors of models and optimizers, the random numbers, the position in each
loader, and what the script's variables hold. A later process runs the script from its top to the first time at this
place, puts the variables back (jumps.py), and takes the tensors from the checkpoint. Where variables cannot be put
back, it repeats the loop with the journal of all values that the script has read (tape.py).
"""

import atexit
import os
import sys
import time
from functools import cached_property
from typing import Any

import torch

from ..checkpoint import saver, shards, tensors_file
from ..checkpoint.errors import CheckpointError
from ..checkpoint.in_memory.memory_saver import MemorySaver
from ..orders import checkpoint
from ..orders.scale import ScaleOptions
from . import events
from .checkpoints import newest
from .checkpoints.random_numbers import as_bytes, from_bytes
from .checkpoints.schedule import HANDED_OVER, ORDER_FILE, Schedule, leave_process
from .files.written_paths import NOTHING_LATER
from .measuring import value_watch
from .rehearsal import course
from .replay import cycles, pending, reads, same_script, stubs
from .replay.carried import ScriptVariables, changed_counts, counts, cut_like, put_random_states, random_states
from .replay.draws import LeftDraws, Masks
from .replay.jumps import Jumps
from .replay.passes import Passes
from .replay.resumed import AT_REQUEST, AT_STEP, FACTS, JOURNAL, Resumed, Rounds, find
from .replay.same_script import CARRIED
from .replay.state import ScriptObjects, is_weight
from .replay.stubs import BackwardHooks
from .replay.tape import OFF, PLAY, RECORD, Journal
from .rng import generators
from .run import Run
from .scaling_error import ScalingError
from .wire import plain_data
from .wire import world as worlds
from .wire.gather import is_dtensor, whole

WRITTEN = "written.jsonl"
"""Beside the checkpoints: the paths that the run has written."""
_OWN = "rng/rank-%d"
_DRAWN = "rng/drawn-by-rank-%d"
"""The states of the workers of a rank's loaders, and of the generators that the script has made."""


class Continuing:
    _run: Run
    _passes: Passes

    def __init__(self, order: checkpoint.CheckpointOrder, resumed: Resumed | None, seed: int) -> None:
        self._order = order
        self._seed = seed
        self._resumed = resumed
        self._tape = Journal()
        self._objects = ScriptObjects()
        self._carried = ScriptVariables()
        self._pending = pending.Pending()
        self._saver: saver.Saver | None = None
        self._memory: MemorySaver | None = None
        self._num_steps = 0
        self._is_step_over = False
        self._has_said_early = False
        self._first_counts: dict[str, int] | None = None
        self._rehearsal = course.asked(os.environ, needs_checkpoint=True)
        self._rounds = Rounds()
        self._arguments = [str(one) for one in sys.argv[1:]]
        self._script: dict[str, str] = {}
        self._began = time.monotonic()
        self._is_checked = self._is_compared = False

    def install(self, run: Run) -> None:
        """Hook all that is recorded or repeated; call it after the hooks of the run, which these surround."""
        self._run = run
        self._passes = Passes(self._tape, run, lambda: self._at_boundary(AT_REQUEST))
        reads.install(self._tape)
        reads.install_loads(self._tape, run.files)
        stubs.mute_loggers(self._tape)
        self._objects.install()
        hooks = BackwardHooks(self._tape)
        hooks.install()
        self._pending.install()
        steps = stubs.StepListener(self._stepped, self._end_step, self._pending.note_backward)
        stubs.install(self._tape, self._objects.optimizers, hooks, steps)
        self._passes.install()
        cycles.install()
        self._jumps = Jumps(run, self._tape, self._objects, self._passes, lambda: hooks.number)
        self._masks = Masks(self._tape)
        self._left_draws = LeftDraws(self._tape)
        self._tape.on_leave = self._leave
        log = os.path.join(self._order.folder, WRITTEN)
        if self._resumed is not None:
            before = self._resumed.facts.get("arguments", self._arguments)
            same_script.say_other_arguments(before, self._arguments, run.say)
            if checkpoint.is_restarted(os.environ):  # else the launcher compares, and names what was edited
                same_script.say_edits(self._resumed.facts.get("script", {}), run.say)
            stubs.mute_streams(self._tape)
            stubs.hook_factories(self._tape)
            self._is_checked = run.first_step.is_due
            run.first_step.is_due = False
            run.files.suspend(self._resumed.facts["written"], log, self._resumed.facts.get("log", NOTHING_LATER))
            self._tape.at_end = self._go_on
            self._tape.load(self._resumed.document(JOURNAL))
        if run.is_main and run.files.written is not None:
            run.files.written.log_to(log, run.say)
        why = "From the first optimizer on, a checkpoint keeps what the script reads."
        events.made.listen("journal", self._begin, why=why)
        atexit.register(self._end)

    def _leave(self, is_left: bool) -> None:
        self._masks.switch(is_on=not is_left and self._tape.phase != OFF)
        self._left_draws.switch(is_left=is_left)

    def _begin(self, _: torch.optim.Optimizer) -> None:
        if self._tape.phase == OFF and self._tape.is_here:
            self._script = same_script.digests()
            self._pending.looks = same_script.looks_at_gradients(self._script)
            self._carried.begin()
            self._jumps.left_out.begin()
            self._masks.draws.begin()
            self._tape.phase = RECORD if self._resumed is None else PLAY
            self._masks.switch(is_on=True)
            self._run.calls.is_idle = self._resumed is not None

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        if not self._tape.is_mine or self._tape.phase == OFF:
            return
        self._num_steps += 1
        self._pending.note_step(optimizer)
        if self._rehearsal is not None and self._tape.phase == RECORD:
            self._rehearsal.stepped(optimizer, self._num_steps, self._order.folder)
        is_end = self._rounds.ends(id(optimizer)) or self._tape.is_playing
        if is_end and not self._passes.is_training:
            self._is_step_over = True
            if not self._tape.is_scaling:
                self._end_step()

    def _end_step(self) -> None:
        """End a step of a loop without a loader: after the optimizer, or after the update of its scaler."""
        if self._is_step_over:
            self._is_step_over = False
            self._at_boundary(AT_STEP)

    def _at_boundary(self, kind: str) -> None:
        if self._tape.is_playing:
            self._num_steps = self._jumps.play(self._num_steps)
            if self._resumed is not None and self._tape.is_over and self._resumed.is_place(kind, self._num_steps):
                self._go_on()
        elif self._tape.is_recording and not self._run.parallelism.is_local:  # a mean taken early has other bits
            self._run.join()  # ranks that share nothing have not met
            if self._first_counts is None:
                self._first_counts = counts()
            self._jumps.note()
            with self._tape.paused():
                due = self._schedule.due(self._num_steps)
            if due.ends and self._saver is not None:
                self._saver.wait()  # or the last save would be skipped
            if due.saves:
                self._save(kind)
            else:
                self._keep(kind)
            if due.ends:
                self._hand_over()
            if self._rehearsal is not None and self._rehearsal.ends_at(self._num_steps):
                self._end_rehearsal(self._rehearsal)

    # Saving

    def _save(self, kind: str) -> None:
        with self._tape.paused():
            self._run.bits.compare_all()
            self._the_saver().save(self._num_steps, *self._state(kind))
        self._schedule.note_saved(self._num_steps)

    def _keep(self, kind: str) -> None:
        with self._tape.paused():
            self._the_memory().keep(self._num_steps, lambda: self._state(kind))

    def _state(self, kind: str) -> saver.SavedState:
        if not self._is_compared:
            self._is_compared = True
            self._objects.refuse_different_attributes()
        is_cut = self._jumps.cut(self._num_steps)
        if is_cut:
            self._masks.draws.go_on()
            self._left_draws.go_on()
        tensors = self._objects.tensors()
        kept = self._carried.tensors(self._objects.ids(), self._jumps.unread())
        carried = {CARRIED + path: one for path, one in kept.items()}
        split = [name for name, one in tensors.items() if is_dtensor(one) and is_weight(name)]
        cut = cut_like(carried, tensors)
        tensors.update(carried)
        gradients, kinds = self._pending.gradients(self._objects, self._run.parallelism.reduce)
        tensors.update(gradients)
        tensors.update(same_script.tensors(self._objects.models()))
        tensors.update(cycles.tensors())
        rank, generators_of_script = self._run.world.processes.rank, random_states()
        tensors[_OWN % rank] = generators.as_tensor(self._run.generators)
        drawn = {"workers": self._passes.draws_of_workers(), "generators": generators_of_script}
        tensors[_DRAWN % rank] = as_bytes(drawn)
        left_out = {} if is_cut and kind == AT_REQUEST else self._jumps.left_out.content()
        others = {"cut": cut, "split": split, "gradients": kinds, "left out": left_out, "cleared": self._pending.left}
        documents = {
            JOURNAL: self._tape.content(),
            FACTS: plain_data.encode({**self._facts(kind), "generators": generators_of_script, **others}),
        }
        return saver.SavedState(tensors, documents, {"kind": kind})

    def _facts(self, kind: str) -> dict[str, object]:
        return {
            "kind": kind,
            "step": self._num_steps,
            "seed": self._seed,
            "random": generators.portable_state(),
            "passes": self._passes.positions(),
            "counts": changed_counts(self._first_counts or {}, self._jumps.unread()),
            "files": self._run.files.sizes(),
            "written": self._run.files.written.before if self._run.files.written else {},
            "log": self._run.files.written.place() if self._run.files.written else (0, []),
            "keys": self._run.keys.place(),
            "ranks": self._run.world.processes.size,
            "arguments": self._arguments,
            "script": self._script,
            "learnt": self._run.parallelism.learnt(),
            "draws": self._run.draws.progress(),
            **self._objects.rest(),
        }

    def _the_saver(self) -> saver.Saver:
        if self._saver is None:
            processes = self._run.world.processes
            self._saver = saver.Saver(
                self._order.folder, processes.rank, processes.size, self._order.keep, say=self._say
            )
        return self._saver

    def _the_memory(self) -> MemorySaver:
        if self._memory is None:
            processes = self._run.world.processes
            self._memory = newest.new_saver(processes.rank, processes.size, self._say)
        return self._memory

    def _say(self, text: str) -> None:
        """Print a line about checkpoints; the first one that comes too early speaks for all."""
        if saver.STILL_WRITTEN in text:
            if self._has_said_early:
                return
            self._has_said_early = True
            text += "; so are all that come too early, without a line"
        self._run.say(text)

    @cached_property
    def _schedule(self) -> Schedule:
        return Schedule(self._order, self._run.world.processes.size, os.environ.get(ORDER_FILE, ""))

    def _hand_over(self) -> None:
        """End this process after the checkpoint; the successor of this job goes on."""
        self._the_saver().wait()
        if self._run.is_main:
            self._run.say(self._the_saver().told_at_end(self._num_steps))
        leave_process(HANDED_OVER)

    def _end_rehearsal(self, rehearsal: course.RehearsedRun) -> None:
        if self._saver is not None:
            self._saver.wait()
        with self._tape.paused(), self._run.parallelism.shown():
            rehearsal.finish(self._objects.tensors(), whole)
        leave_process(0)

    def _end(self) -> None:
        for one in (self._saver, self._memory) if self._tape.is_mine else ():
            if one is not None:
                one.wait()
        if self._rehearsal is not None and self._tape.is_mine:
            self._rehearsal.finish_at_exit()

    # Continuing

    def _go_on(self) -> None:
        """End the repetition: take the tensors of the checkpoint, and compute from here on."""
        resumed, self._resumed = self._resumed, None
        if resumed is None:
            return
        facts = resumed.facts
        self._tape.phase = OFF
        stubs.leave()
        self._run.calls.is_idle = False
        self._jumps.left_out.put(facts.get("left out", {}))
        same_script.compare_counts(facts["counts"])
        self._run.prepare()
        newest.refuse_other_steps(resumed.found.step)
        self._objects.drop_gradients()
        self._run.parallelism.apply()  # before anything is loaded: a rank reads its part of each DTensor
        saved = tensors_file.read(resumed.found.path)
        same_script.say_settings(self._objects.other_settings(facts), self._run.say)
        self._objects.prepare(facts, saved)
        tensors = self._objects.tensors()
        same_script.check_names(tensors, saved)
        trained, kinds = self._objects.trained(), facts.get("gradients", {})
        same_script.refuse_whole_copies(tensors, facts.get("split", ()), trained)
        carried = resumed.empty(CARRIED)
        for path, name in facts.get("cut", {}).items():
            if is_dtensor(tensors[name]):
                carried[path] = torch.zeros_like(tensors[name], dtype=carried[path].dtype)
        rank, is_as_before = self._run.world.processes.rank, facts.get("ranks") == self._run.world.processes.size
        own = resumed.empty(_OWN % rank, is_whole_name=True)
        drawn = resumed.empty(_DRAWN % (rank if is_as_before else 0), is_whole_name=True)
        kept, cycled = resumed.empty(same_script.PREFIX), resumed.empty(cycles.PREFIX)
        gradients = pending.empty(trained, kinds)
        self._load({**tensors, **carried, **own, **drawn, **kept, **cycled, **gradients}, resumed.found.path)
        pending.put(trained, kinds, gradients)
        same_script.put(self._objects.models(), kept)
        cycles.put(cycled, self._run.world)
        missing = self._carried.put({path[len(CARRIED) :]: one for path, one in carried.items()}, self._jumps.unread())
        if missing:
            raise ScalingError(
                "the script has no variable for {} of the checkpoint".format(", ".join(missing[:5])),
                "start the script without --resume",
            )
        self._run.files.go_on(facts["files"], is_closed=not self._run.is_main)
        self._tape.go_on()
        self._masks.draws.go_on()
        self._left_draws.go_on()
        # a process for one device could not compute with the parts that this rank has
        self._begin_training(was_checked=is_as_before or any(map(is_dtensor, tensors.values())))
        with self._tape.paused():
            self._run.parallelism.go_on(facts.get("learnt", {}))
        self._run.draws.go_on(facts.get("draws", ()))
        drawn_by_rank = [from_bytes(one) for one in drawn.values()] or [{"workers": {}, "generators": {}}]
        self._go_on_loading(facts, drawn_by_rank[0], is_as_before=is_as_before)
        self._run.keys.go_on(facts["keys"])
        for states in own.values():
            generators.put(self._run.generators, states)
        generators.put_portable_state(facts["random"])
        self._schedule.note_saved(self._num_steps, on_disk=resumed.is_on_disk)
        self._run.say(
            f"continues after step {self._num_steps}, from {newest.place_in_words(on_disk=resumed.is_on_disk)}; "
            f"{self._jumps.way_in_words(self._num_steps)} in {time.monotonic() - self._began:.1f} s"
        )

    def _go_on_loading(self, facts: dict[str, Any], drawn: dict[str, Any], *, is_as_before: bool) -> None:
        """Go on in the passes over loaders, with the random numbers of their workers where ranks are as before."""
        are_same = self._passes.go_on(facts["passes"], drawn["workers"] if is_as_before else {})
        has_draws = any(states for _, workers in drawn["workers"].values() for states in workers.values())
        if has_draws and not are_same:
            self._run.say(
                "note: the workers of a DataLoader draw other random numbers from here on: the checkpoint has those of "
                "{} ranks, or of another number of workers".format(facts.get("ranks"))
            )
        put_random_states({**facts["generators"], **(drawn["generators"] if is_as_before else {})})
        self._passes.settle()
        self._pending.expect_clearing(self._objects.optimizers(), facts.get("cleared", ()))

    def _begin_training(self, *, was_checked: bool) -> None:
        """Train from here on; the first step of another number of ranks is compared with that of one device."""
        run = self._run
        run.first_step.is_due = self._is_checked and not was_checked
        run.first_step.keeps_dropout = True  # a continued run has the same steps
        if value_watch.current is not None:
            value_watch.current.continue_after(self._num_steps)
        run.begin_training()

    def _load(self, tensors: dict[str, torch.Tensor], folder: str) -> None:
        try:
            shards.load(tensors, folder)
        except CheckpointError as error:
            raise ScalingError(error.message, error.hint or "start the script without --resume") from None


def begin(order: checkpoint.CheckpointOrder, options: ScaleOptions, world: worlds.World) -> Continuing:
    """Return the checkpoints of the training that follows; set the seed of the run that it continues."""
    _refuse_options(options)
    resumed = find(order, world)
    if resumed is not None:
        os.environ[checkpoint.SEED] = str(resumed.facts["seed"])
    return Continuing(order, resumed, worlds.seed_of_run(os.environ))


def _refuse_options(options: ScaleOptions) -> None:
    if options.is_of_user or options.steps_alone or options.compress:
        asked = " ".join(["--scale", options.how, *options.written()])
        raise ScalingError(
            f"--checkpoint-every cannot save a training with {asked}",
            "remove these options, or let the script save itself, and remove --checkpoint-every",
        )
