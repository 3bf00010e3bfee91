"""One training on several ranks: the loaders, the gradients and the random numbers of a script, tied together."""

import os
import sys
from typing import Any, List, Optional, Union

import torch
from torch import nn
from torch.utils.data import DataLoader

from . import record
from . import world as worlds
from .check import FirstStep
from .files import Files
from .gradients import Gradients, scalars_as_one
from .loops import Loop, WholeLoop, iterate, new_twins
from .refusal import Refusal
from .streams import Streams

SCALED = (
    "scaled over %d ranks: each takes its part of every batch, and the loss is that of the whole batch; "
    "what else a loop counts (hits, batch sizes) is rank 0's part"
)
Floats = Union[torch.Tensor, float]


class Run:
    """What `echelon.start()` returns; it works alone on one process too."""

    def __init__(self, world: worlds.World, *, is_hooked: bool) -> None:
        self.world = world
        self.is_hooked = is_hooked
        self._pid = os.getpid()
        self.streams = Streams(world.rank, worlds.seed_of_run(os.environ))
        self.gradients = Gradients(world)
        self.twins = new_twins()
        self.files = Files(is_closed=world.rank > 0)
        self.record = record.asked(os.environ, is_main=world.rank == 0)
        self.is_reordered = bool(os.environ.get("ECHELON_RECORD_REORDERED"))
        self.first_step = FirstStep(is_main=world.rank == 0, say=self.say)
        self.is_training_mode = True
        self.has_begun = False
        """Whether there was a training loop."""
        self._last_weight = 1.0
        self._loops: List[Loop] = []

    # What a person calls

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self.world.device

    @property
    def is_main(self) -> bool:
        """Whether this rank speaks and writes for all."""
        return self.world.rank == 0

    def loader(self, loader: "DataLoader[Any]") -> Any:
        """Return an iterable with this rank's share of each batch, in the order of one device."""
        return _Sharded(loader, self)

    def model(self, model: nn.Module, *optimizers: torch.optim.Optimizer) -> nn.Module:
        """Put a model on this rank's device and have its gradients be those of the global batch."""
        for optimizer in optimizers:
            self.gradients.add(optimizer)
        return model.to(self.device)

    def mean(self, value: Floats) -> torch.Tensor:
        """Return the mean of a number over all ranks, by the samples that each has in the present batch."""
        worlds.join(self.world)
        tensor = value if isinstance(value, torch.Tensor) else torch.tensor(float(value))
        return worlds.mean(self.world, tensor, self.weight)

    def barrier(self) -> None:
        """Wait for all ranks."""
        worlds.barrier(self.world)

    # What hooks and loops call

    @property
    def loop(self) -> Optional[Loop]:
        """The innermost training loop that goes on now."""
        return self._loops[-1] if self._loops else None

    @property
    def weight(self) -> float:
        """By what a mean over this rank's samples counts."""
        if self.loop is not None and self.loop.share is not None:
            self._last_weight = self.loop.share.weight(self.world.size)
        return self._last_weight

    def begins_training(self) -> bool:
        """Say whether a loop that begins now is for training: gradients are on and a trained model is not in eval()."""
        return torch.is_grad_enabled() and self.gradients.has_optimizers and self.is_training_mode

    def begin(self, loader: "DataLoader[Any]") -> Any:
        """Return the iterator of a loader: sharded for training, whole for evaluation."""
        if os.getpid() != self._pid:  # a worker of a loader, which may use loaders of its own
            return iterate(loader)
        if not self.begins_training():
            return WholeLoop(loader, self)
        self.prepare()
        if not self.has_begun and self.is_main and self.world.size > 1:
            self.say(SCALED % self.world.size)
        self.has_begun = True
        if self.record is not None:
            self.first_step.keep_dropout_off()
        elif self.first_step.is_due and self.world.size > 1 and self.first_step.begin():
            self._become_oracle()
        return Loop(loader, self)

    def _become_oracle(self) -> None:
        """Go on as one device that has whole batches, up to the first step."""
        self._pid = os.getpid()
        self.world = self.world._replace(size=1)
        self.gradients.become_alone()
        self.files.is_closed = True

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the gradients whole before an optimizer uses them, and compare the first ones."""
        self.gradients.before_step()
        if self.record is not None:
            self.record.before_step(optimizer, self.gradients.parameters())
            return
        if self.gradients.num_steps == 1 and not self.first_step.is_due:
            self.first_step.before_step(self.gradients.parameters())

    def say(self, text: str) -> None:
        """Talk to the person: on standard error, which is shown for rank 0."""
        sys.stderr.write("echelon: %s\n" % text)
        sys.stderr.flush()

    def prepare(self) -> None:
        """Meet the other ranks and agree on the weights."""
        worlds.join(self.world)
        self.gradients.prepare()

    def enter(self, loop: Loop) -> None:
        """Begin a step of a loop."""
        if loop not in self._loops:
            self._loops.append(loop)
        self.streams.own()
        self.first_step.note_step()

    def leave(self, loop: Loop) -> None:
        """End a loop."""
        if loop in self._loops:
            self._last_weight = self.weight  # a loss of the last step may be read after the loop
            self._loops.remove(loop)
            if not self._loops:
                self.streams.common()

    def backward(self, loss: torch.Tensor, run_backward: Any) -> None:
        """Run a loss's backward for the global batch, and let the loss be the global one afterwards."""
        if self.world.size == 1:
            if self.loop is not None:
                self.loop.num_backwards += 1
            run_backward(loss)
            self._note_loss(loss)
            return
        if self.loop is None:
            self._refuse_unsharded()
        for loop in self._loops:  # zip(one, other) is a loop over both
            loop.num_backwards += 1
        self.gradients.prepare()
        is_scalar = loss.numel() == 1
        wait = scalars_as_one(self.world, loss, self.weight) if is_scalar else None
        self.gradients.backward(loss, self.weight, run_backward)
        if wait is not None:
            with torch.no_grad():
                loss.data.copy_(wait())
            loss._echelon_is_global = True  # type: ignore[attr-defined]
        self._note_loss(loss)

    def _note_loss(self, loss: torch.Tensor) -> None:
        if self.record is not None and loss.numel() == 1:
            self.record.loss = float(loss.detach())

    def _refuse_unsharded(self) -> None:
        raise Refusal(
            "backward() was called on samples that did not come from a DataLoader that is shared among the ranks, "
            "so every rank would train on the same ones",
            "draw the batches with a torch DataLoader and step with a torch.optim optimizer, "
            "or start one rank: echelon run -n 1 …",
        )


class _Sharded:
    """The explicit form of a sharded loader."""

    def __init__(self, loader: "DataLoader[Any]", run: Run) -> None:
        self._loader = loader
        self._run = run

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Any:
        self._run.prepare()
        return Loop(self._loader, self._run)
