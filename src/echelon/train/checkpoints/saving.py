"""`echelon.checkpoints()`: save a training that distributes itself as it goes, and continue it in a later process."""

import os
import sys
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch

from ... import checkpoint_order
from ...checkpoint import exchange, safetensors, saver, shards, store, tensors_file
from ...checkpoint.errors import CheckpointError
from .. import plain_data
from ..exact.keys import Keys
from ..replay.schedule import ORDER_FILE, Schedule
from ..rng.generators import Generators
from ..scaling_error import ScalingError, tell_briefly
from .objects import Objects
from .position import Behind, Position
from .random_numbers import RandomNumbers

FACTS = "facts.bin"
KIND = "named"
HANDED_OVER = 85
RUN_DIRECTORY = "ECHELON_RUN_DIR"
_AGAIN = "begin in another run directory"


class Checkpoints:
    """The checkpoints of one training; `echelon.checkpoints()` returns it, and has an example.

    Each loop goes on where the newest whole checkpoint was made. `values` is a dict of plain values of the script, such
    as the best loss so far; it is saved too.
    """

    def __init__(
        self, every: str, named: Dict[str, Any], streams: Sequence[Generators] = (), keys: Optional[Keys] = None
    ) -> None:
        tell_briefly()
        self.values: Dict[str, Any] = {}
        """Plain values of the script: numbers, text, lists, dicts and tensors."""
        self.step_number = 0
        """The number of steps that are done."""
        self._order = _ordered(every)
        self._rank, self._num_ranks = exchange.rank(), exchange.size()
        self._objects = Objects(named)
        self._position = Position()
        self._saver = saver.Saver(self._order.folder, self._rank, self._num_ranks, self._order.keep, say=self._say)
        self._schedule = Schedule(self._order, self._num_ranks, os.environ.get(ORDER_FILE, ""))
        self._random = RandomNumbers([*self._objects.streams, *streams], keys)
        self._was_ranks = self._num_ranks
        self._has_stepped = False
        self._is_compared = False
        self._may_loop = False
        for optimizer in self._objects.optimizers.values():
            optimizer.register_step_post_hook(self._note_step)
        found = self._find()
        if found is not None:
            self._go_on(found)

    # What a person calls

    def epochs(self, number: int) -> Iterator[int]:
        """Return the numbers of the epochs that are left, from 0 to `number` - 1 in a run that is not resumed."""
        while self._position.epoch < number:
            self._may_loop = True
            yield self._position.epoch
            self._may_loop = False
            self._position.epoch += 1
            self._position.batches = 0
        self.wait()  # the script may destroy its process group now

    def batches(self, loader: Any) -> Iterator[Any]:
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
            self.step()

    def step(self) -> None:
        """End a step of a loop without `batches`; save when it is time. All ranks call it after the same steps."""
        if self._objects.optimizers and not self._has_stepped:
            return  # gradients are still being added up
        self._has_stepped = False
        self.step_number += 1
        due = self._schedule.due(self.step_number)
        if due.saves:
            self._save()
        if due.ends:
            self._hand_over()

    def wait(self) -> bool:
        """Wait until the newest save is published; return whether it is."""
        return self._saver.wait()

    # Saving

    def _note_step(self, *_: Any) -> None:
        self._has_stepped = True

    def _save(self) -> None:
        if not self._is_compared and self._num_ranks > 1:
            self._objects.refuse_different()
            self._is_compared = True
        tensors = {**self._objects.weights(), **self._objects.states(), **self._objects.others(self._rank)}
        tensors.update(self._random.tensors(self._rank))
        facts = {
            "step": self.step_number, "position": self._position.facts(), "values": self.values,
            "settings": self._objects.settings(), "ranks": self._num_ranks,
        }  # fmt: skip
        self._saver.save(self.step_number, tensors, {FACTS: plain_data.encode(facts)}, {"kind": KIND})
        self._schedule.note_saved(self.step_number)

    def _hand_over(self) -> None:
        """End this process after the checkpoint; the successor of this job goes on."""
        self._saver.wait()
        self._say("saved after step %d and ends, as ordered before the end of the job" % self.step_number)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(HANDED_OVER)

    def _say(self, text: str) -> None:
        if self._rank == 0:
            sys.stderr.write("echelon: %s\n" % text)

    # Continuing

    def _find(self) -> Optional[store.Checkpoint]:
        """Return the newest whole checkpoint; all ranks must find the same."""
        found, findings = store.Store(self._order.folder, self._order.keep).latest()
        for finding in findings:
            self._say("note: %s" % finding)
        steps = [int(one) for one in exchange.gather(b"%d" % (found.step if found else -1))]
        if len(set(steps)) > 1:
            raise ScalingError(
                "rank 0 has found the checkpoint of step %d, and another rank that of step %d"
                % (steps[0], next(step for step in steps if step != steps[0])),
                "start the run again when the file system shows all ranks the same files",
            )
        return found

    def _go_on(self, found: store.Checkpoint) -> None:
        """Take the state of a checkpoint; refuse one that another training wrote."""
        if found.manifest.about.get("kind") != KIND:
            raise ScalingError("%s was not written by echelon.checkpoints()" % found.path, _AGAIN)
        with open(os.path.join(found.path, FACTS), "rb") as file:
            facts = plain_data.decode(file.read())
        saved = tensors_file.read(found.path)
        if set(facts["settings"]) != set(self._objects.optimizers):
            raise ScalingError(
                "the checkpoint has the optimizers %s, and the script names %s"
                % (", ".join(facts["settings"]) or "none", ", ".join(self._objects.optimizers) or "none"),
                _AGAIN,
            )
        own = {name: torch.empty(one.shape, dtype=torch.uint8) for name, one in saved.items() if _is_own(name)}
        like = {name: (tuple(one.shape), safetensors.dtype_of(one.dtype)) for name, one in saved.items()}
        weights, states = self._objects.weights(), self._objects.make_states(like)
        try:
            left = shards.load({**weights, **states, **own}, found.path)
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
                "note: the checkpoint has the random numbers of %d ranks; further ranks begin anew with those that "
                "differ between ranks, such as dropout" % self._was_ranks
            )
        self._schedule.note_saved(self.step_number)
        self._say("continues after step %d, from a checkpoint" % self.step_number)

    def _begin_epoch(self, loader: Any) -> Iterator[Any]:
        """Return an iterator at the place in the epoch; a shuffle is drawn as at the epoch's begin."""
        self._position.fit(loader, was_ranks=self._was_ranks, num_ranks=self._num_ranks)
        self._was_ranks = self._num_ranks
        self._random.begin_epoch(is_in_middle=self._position.batches > 0)
        behind = Behind(loader, self._position.batches)
        if self._random.is_resumed:
            behind.skip()
            self._random.go_on()
        return behind.batches


def _ordered(every: str) -> checkpoint_order.Order:
    """Return the order of the command line, else that of the script."""
    order = checkpoint_order.read(os.environ)
    if order is not None:
        return order
    found = checkpoint_order.interval(every)
    if found is None:
        raise ScalingError("every=%r is no interval" % every, 'every="10m", "2h", "90s" or "200steps"')
    folder = os.path.join(os.environ.get(RUN_DIRECTORY, os.curdir), "checkpoints")
    return checkpoint_order.Order(os.path.abspath(folder), steps=found[0], seconds=found[1])


def _is_own(name: str) -> bool:
    return name.startswith(("random", "object/"))


def _refuse_left(left: List[str]) -> None:
    names = [name for name in left if not _is_own(name)]
    if names:
        raise ScalingError("the checkpoint has %s, and the script has not" % ", ".join(sorted(names)[:5]), _AGAIN)
