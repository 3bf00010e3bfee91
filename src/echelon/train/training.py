"""The state of one training that all its parts share."""

import os
import sys
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from ..orders import checkpoint
from ..orders.scale import ScaleOptions
from . import child_training
from .base_parallelism import Parallelism, Setup
from .batches import rows_of
from .buckets import DEFAULT_MEGABYTES
from .caught_errors import Raised
from .check.first_step import FirstStep
from .check.row_trial import RowTrials
from .exact.keys import Keys
from .files.sharing import Files
from .global_tensors.ignore_index import IgnoreIndex
from .global_tensors.model_calls import ModelCalls
from .gradient_hooks import LateHooks
from .recording.record import Record
from .rng.draws import Draws
from .rng.generators import Generators
from .rng.workers_draws import WorkersDraws
from .wire.world import World


class OpenLoop(Protocol):
    """A training loop over a loader."""

    num_rows: int
    """Samples of the batch that is at hand, on all ranks."""


class Training:
    """One training on several ranks; `Run` makes its parts, which see this much of each other."""

    world: World
    options: ScaleOptions
    files: Files
    record: Record | None
    parallelism: Parallelism
    generators: Generators
    draws: Draws
    calls: ModelCalls
    first_step: FirstStep
    trials: RowTrials
    raised: Raised
    late_hooks: LateHooks
    keys: Keys
    ignore_index: IgnoreIndex
    sharded_loaders: "weakref.WeakKeyDictionary[Any, Any]"
    """Sharded copies of loaders, which keep their workers from epoch to epoch."""
    is_hooked: bool
    """Whether the script is unchanged, and PyTorch calls this training by hooks."""
    is_main: bool
    """Whether this rank speaks and writes for all."""
    is_reordered: bool
    """Whether batches have their samples in another order, as `echelon prove` asks for once."""
    batches_per_step: int
    """How many of the script's batches make one of all ranks, and of the oracle."""
    has_begun: bool
    """Whether something was trained."""
    resumed_pass: tuple[int, int] = (0, 0)
    """The number of batches that the next pass over a loader leaves out, and its key; a checkpoint had them."""

    workers_draws: Mapping[Any, WorkersDraws] | None = None
    """What the workers of loaders draw, by loader; None where no checkpoint keeps it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loops: list[OpenLoop] = []
        self._last_fraction = 1.0

    def begin_training(self) -> None:
        """Meet the other ranks; the first time, say so, once an oracle is on its way."""
        raise NotImplementedError

    def join(self) -> None:
        raise NotImplementedError

    def prepare(self) -> None:
        self.join()
        self.parallelism.prepare()

    def setup(self) -> Setup:
        is_saved = checkpoint.VARIABLE in os.environ and self.world.size > 2  # two numbers have one sum
        megabytes = 0.0 if self.is_hooked and self.record is None and not is_saved else DEFAULT_MEGABYTES
        return Setup(self.world, self.options, self.say, self.generators, is_saved, megabytes)

    def suit_first_step(self) -> None:
        """Compare the first step as the parallelism allows."""
        self.first_step.keeps_dropout = self.parallelism.keeps_dropout
        self.first_step.syncs_batch_norm = self.options.syncs_batch_norm or not self.parallelism.shares_batches
        self.first_step.compares_buffers = self.parallelism.shares_batches

    def begins_training(self) -> bool:
        """Say whether a batch that begins now is for training: gradients are recorded, and there is an optimizer."""
        return torch.is_grad_enabled() and self.parallelism.has_optimizers

    def pop_resumed_pass(self) -> tuple[int, int]:
        """Return `resumed_pass`, once."""
        taken, self.resumed_pass = self.resumed_pass, (0, 0)
        return taken

    @property
    def is_at_home(self) -> bool:
        return os.getpid() == self._pid

    def is_in_child(self, *_: object) -> bool:
        """Say whether a process that this one has started trains; end it, unless it only loads samples."""
        if os.getpid() == self._pid or self.world.is_alone:
            return False
        child_training.meet(self._pid)
        return True

    def say(self, text: str) -> None:
        """Talk to the person, on the standard error of rank 0."""
        if self.is_main:
            sys.stderr.write(f"echelon: {text}\n")
            sys.stderr.flush()

    @property
    def loop(self) -> OpenLoop | None:
        """The innermost training loop that goes on now."""
        return self._loops[-1] if self._loops else None

    def enter(self, loop: OpenLoop) -> None:
        if loop not in self._loops:
            self._loops.append(loop)

    def leave(self, loop: OpenLoop) -> None:
        if loop in self._loops:
            self._last_fraction = self.weight / self.world.size  # a loss of the last step may be read after the loop
            self._loops.remove(loop)

    def batch_sizes(self) -> set[int]:
        return {loop.num_rows for loop in self._loops if loop.num_rows}

    @property
    def weight(self) -> float:
        """The weight of a mean over this rank's samples in a mean over ranks; the mean of all weights is 1."""
        if self.loop is not None and self.loop.num_rows:
            rows = rows_of(self.loop.num_rows, self.world.size)
            own = rows[self.world.rank : self.world.rank + self.world.hosted]  # several shards, with exact
            self._last_fraction = sum(own) / self.loop.num_rows
        return self._last_fraction * self.world.size
