"""`echelon.checkpoints()`: save a training that distributes itself as it goes, and continue it in a later process."""

import atexit
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...checkpoint import exchange, safetensors, saver, shards, store, tensors_file
from ...checkpoint.errors import CheckpointError
from ...orders import checkpoint as orders_checkpoint
from ..exact.keys import Keys
from ..loops import ShardedLoader
from ..rng.generators import Generators
from ..scaling_error import ScalingError, tell_briefly
from ..wire import plain_data
from .newest import any_rank, new_saver, newest_in_memory, newest_on_disk, place_in_words, refuse_other_steps
from .objects import NamedObjects
from .position import Behind, Position, keeps_workers, loader_of
from .random_numbers import OWN, RandomNumbers, Workers
from .schedule import HANDED_OVER, ORDER_FILE, Schedule, leave_process

FACTS = "facts.bin"
KIND = "named"
RUN_DIRECTORY = "ECHELON_RUN_DIR"
_AGAIN = "begin in another run directory"
_taken: set[str] = set()
"""The folders of the checkpoints of this process: a second training in one folder would continue the first."""


class Checkpoints:
    """The checkpoints of one training; `echelon.checkpoints()` returns it, and has an example.

    Each loop goes on where the newest whole checkpoint was made. `values` is a dict of plain values of the script, such
    as the best loss so far; it is saved too.
    """

    def __init__(
        self, every: str, named: dict[str, Any], streams: Sequence[Generators] = (), keys: Keys | None = None
    ) -> None:
        tell_briefly()
        self.values: dict[str, Any] = {}
        """Plain values of the script: numbers, text, lists, dicts and tensors."""
        self.step_number = 0
        """The number of steps that are done."""
        self._order = _ordered(every)
        self._rank, self._num_ranks = exchange.rank(), exchange.size()
        self._objects = NamedObjects(named)
        self._position = Position()
        self._saver = saver.Saver(self._order.folder, self._rank, self._num_ranks, self._order.keep, say=self._say)
        self._memory = new_saver(self._rank, self._num_ranks, self._say)
        self._schedule = Schedule(self._order, self._num_ranks, os.environ.get(ORDER_FILE, ""))
        self._random = RandomNumbers([*self._objects.streams, *streams], keys)
        self._workers = Workers(self._say)
        self._was_ranks = self._num_ranks
        self._stepped: set[int] = set()
        """The optimizers that have stepped since the last step of the training."""
        self._left_out: set[str] | None = None
        """The buffers that a rank before this one saves; None: not known yet."""
        self._may_loop = self._has_epochs = False
        _refuse_second_training(self._order.folder)
        pid = os.getpid()
        atexit.register(lambda: self.wait() if os.getpid() == pid else None)
        for optimizer in self._objects.optimizers.values():
            optimizer.register_step_post_hook(lambda one, *_: self._stepped.add(id(one)))
        newest = self._find()
        if newest is not None:
            self._go_on(newest)

    # What a person calls

    def epochs(self, number: int) -> Iterator[int]:
        """Return the numbers of the epochs that are left, from 0 to `number` - 1 in a run that is not resumed.

        A training has one such loop. `batches` counts the batches of an epoch; what the script itself counts there, as
        with enumerate(), begins at 0 in a resumed epoch.
        """
        if self._has_epochs:
            raise ScalingError(
                "checkpoint.epochs() is called a second time, and a checkpoint has one place in one loop",
                "one loop over all epochs of the training",
            )
        self._has_epochs = True
        try:
            while self._position.epoch < number:
                self._may_loop = True
                yield self._position.epoch
                self._may_loop = False
                self._position.epoch += 1
                self._position.batches = 0
        finally:
            self.wait()  # the script may destroy its process group now

    def batches(self, loader: object) -> Iterator[Any]:
        """Return the batches of this epoch that are left, and save between two of them when it is time.

        Batches that are done are not loaded again where the loader's samples have an index. It is for the one loop of
        an epoch that trains; other loops, such as an evaluation, stay as they are.
        """
        if not self._may_loop:
            raise ScalingError(
                "checkpoint.batches() is for one loop in each epoch of checkpoint.epochs(), which counts them",
                "for epoch in checkpoint.epochs(10): for batch in checkpoint.batches(loader): …",
            )
        self._may_loop = False
        for batch in self._begin_epoch(loader):
            self._position.batches += 1
            yield batch
            self._end_step()

    def step(self) -> None:
        """End a step of a loop without `epochs` and `batches`; save when it is time. All ranks call it alike."""
        if self._has_epochs:
            raise ScalingError(
                "checkpoint.step() is called in a loop of checkpoint.epochs(), whose batches nobody counts",
                "for batch in checkpoint.batches(loader): …   without checkpoint.step()",
            )
        self._end_step()

    def wait(self) -> None:
        """Wait until the newest save is published, or has failed with a line."""
        self._saver.wait()
        self._memory.wait()

    def _end_step(self) -> None:
        """Count a step, and save, unless gradients are still being added up."""
        if self._objects.has_gradients_left(self._stepped):
            return
        self._stepped.clear()
        self.step_number += 1
        due = self._schedule.due(self.step_number)
        if due.ends:
            self.wait()  # or the last save would be skipped
        if due.saves:
            self._saver.save(self.step_number, *self._state())
            self._schedule.note_saved(self.step_number)
        else:
            self._memory.keep(self.step_number, self._state)
        if due.ends:
            self._hand_over()

    # Saving

    def _state(self) -> saver.SavedState:
        if self._left_out is None:
            self._left_out = self._objects.compare_ranks() if self._num_ranks > 1 else set()
        weights = {name: one for name, one in self._objects.weights().items() if name not in self._left_out}
        tensors = {**weights, **self._objects.states(), **self._objects.others(self._rank)}
        workers = self._workers.states(is_in_middle=self._position.batches > 0)
        tensors.update(self._random.tensors(self._rank, workers))
        facts = {
            "step": self.step_number, "position": self._position.facts(), "values": self.values,
            "settings": self._objects.settings(), "ranks": self._num_ranks,
        }  # fmt: skip
        return saver.SavedState(tensors, {FACTS: self._encoded(facts)}, {"kind": KIND})

    def _encoded(self, facts: dict[str, Any]) -> bytes:
        for name, value in self.values.items():
            try:
                plain_data.encode(value)
            except ScalingError as error:
                error.withdraw()
                raise ScalingError(
                    f"checkpoint.values[{name!r}] is a {type(value).__name__}, which cannot be saved",
                    "keep numbers, text, lists, dicts and tensors in checkpoint.values",
                ) from None
        return plain_data.encode(facts)

    def _hand_over(self) -> None:
        """End this process after the checkpoint; the successor of this job goes on."""
        self._saver.wait()
        self._say(self._saver.told_at_end(self.step_number))
        leave_process(HANDED_OVER)

    def _say(self, text: str) -> None:
        if self._rank == 0:
            sys.stderr.write(f"echelon: {text}\n")

    # Continuing

    def _find(self) -> store.Checkpoint | None:
        """Return the newest whole checkpoint; all ranks must find the same."""
        disk = store.CheckpointStore(self._order.folder, self._order.keep)
        on_disk = newest_on_disk(disk, self._rank, self._num_ranks, any_rank)
        for finding in on_disk.findings:
            self._say(f"note: {finding}")
        newest = newest_in_memory(on_disk.newest, have_met=True, num_ranks=self._num_ranks)
        self._is_on_disk = newest is on_disk.newest
        if newest is None:
            on_disk.refuse_none()
        refuse_other_steps(newest.step if newest is not None else -1)
        return newest

    def _go_on(self, checkpoint: store.Checkpoint) -> None:
        """Take the state of a checkpoint; refuse one that another training wrote."""
        if checkpoint.manifest.about.get("kind") != KIND:
            raise ScalingError(f"{checkpoint.path} was not written by echelon.checkpoints()", _AGAIN)
        with open(os.path.join(checkpoint.path, FACTS), "rb") as file:
            facts = plain_data.decode(file.read())
        saved = tensors_file.read(checkpoint.path)
        if set(facts["settings"]) != set(self._objects.optimizers):
            raise ScalingError(
                "the checkpoint has the optimizers {}, and the script names {}".format(
                    ", ".join(facts["settings"]) or "none", ", ".join(self._objects.optimizers) or "none"
                ),
                _AGAIN,
            )
        own = {name: torch.empty(one.shape, dtype=torch.uint8) for name, one in saved.items() if name.startswith(OWN)}
        like = {name: (tuple(one.shape), safetensors.dtype_of(one.dtype)) for name, one in saved.items()}
        weights, states = self._objects.weights(), self._objects.make_states(like)
        try:
            left = shards.load({**weights, **states, **own}, checkpoint.path)
        except CheckpointError as error:
            raise ScalingError(error.message, error.hint or _AGAIN) from None
        _refuse_left(left)
        self._objects.put_settings(facts["settings"])
        self._objects.put_others(own, self._rank)
        self.step_number, self.values, self._was_ranks = facts["step"], facts["values"], facts["ranks"]
        self._position.go_on(facts["position"])
        self._random.take(own, self._rank, self._was_ranks)
        if self._num_ranks > self._was_ranks:
            self._say(
                f"note: the checkpoint has the random numbers of {self._was_ranks} ranks; further ranks begin anew "
                "with those that differ between ranks, such as dropout"
            )
        self._workers.go_on(self._random.of_workers, are_ranks_as_before=self._num_ranks == self._was_ranks)
        self._random.put()
        self._schedule.note_saved(self.step_number, on_disk=self._is_on_disk)
        self._say(f"continues after step {self.step_number}, from {place_in_words(on_disk=self._is_on_disk)}")

    def _begin_epoch(self, loader: object) -> Iterator[Any]:
        """Return an iterator at the place in the epoch; a shuffle is drawn as at the epoch's begin."""
        self._position.fit(loader, was_ranks=self._was_ranks, num_ranks=self._num_ranks)
        self._was_ranks = self._num_ranks
        is_in_middle = self._random.is_resumed and self._position.batches > 0
        self._random.begin_epoch(loader_of(loader), is_in_middle=is_in_middle)
        had_workers = keeps_workers(loader) and self._position.epoch > 0
        if had_workers and self._random.is_resumed and isinstance(loader, ShardedLoader):
            raise ScalingError(
                "the order of run.loader() with persistent workers cannot be resumed", "persistent_workers=False"
            )
        told, num_passed_over = self._workers.begin(loader, self._position.batches)
        behind = Behind(told, self._position.batches, had_workers=had_workers, num_passed_over=num_passed_over)
        if is_in_middle:
            behind.skip()
        self._random.go_on()
        return self._workers.batches(behind.batches)


def _ordered(every: str) -> orders_checkpoint.CheckpointOrder:
    order = orders_checkpoint.read(os.environ)
    if order is not None:
        return order
    interval = orders_checkpoint.interval(every)
    if interval is None:
        raise ScalingError(f"every={every!r} is no interval", 'every="10m", "2h", "90s" or "200steps"')
    folder = os.path.join(os.environ.get(RUN_DIRECTORY, os.curdir), orders_checkpoint.SUBFOLDER)
    return orders_checkpoint.CheckpointOrder(os.path.abspath(folder), steps=interval[0], seconds=interval[1])


def _refuse_second_training(folder: str) -> None:
    if folder in _taken:
        raise ScalingError(
            "echelon.checkpoints() is called a second time in one process, and would continue the first training",
            "train one model in a process; or name all of its parts in one call",
        )
    _taken.add(folder)


def _refuse_left(left: list[str]) -> None:
    names = [name for name in left if not name.startswith(OWN)]
    if names:
        raise ScalingError("the checkpoint has {}, and the script has not".format(", ".join(sorted(names)[:5])), _AGAIN)
