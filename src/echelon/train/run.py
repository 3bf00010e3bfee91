"""One training on several ranks: the loaders, the gradients and the random numbers of a script, tied together."""

import os
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from ..orders.scale import DEFAULT, ScaleOptions
from . import events
from .batches import STEP_OF_NO_BATCH, leave_workers
from .caught_errors import Raised
from .check.bit_watch import BitWatch
from .check.first_step import FirstStep
from .check.later_steps import LaterSteps
from .check.row_trial import RowTrials
from .exact.keys import Keys
from .explicit import Explicit
from .files.sharing import Files
from .global_tensors import aliases
from .global_tensors.ignore_index import IgnoreIndex
from .gradient_hooks import LateHooks
from .loops import Loop, WholeLoop, iterate
from .recording import record, steps
from .rng.draws import Draws
from .rng.generators import Generators
from .wire import device as devices
from .wire import world as worlds

_WHY = "A step uses the gradients of the whole batch."


class Run(Explicit):
    """One training on several ranks; `echelon.start()` returns it. It works alone on one process too.

    `world.size` is the number of ranks (of virtual shards with `exact`), `world.rank` this rank's number, `device` its
    device. Only rank 0 has `is_main`.
    """

    def __init__(self, world: worlds.World, *, is_hooked: bool, options: ScaleOptions = DEFAULT) -> None:
        super().__init__()
        self.world = world
        self.is_hooked = is_hooked
        self.options = options
        self.is_aside = False
        """Whether the script turned out to share the work by itself."""
        seed = worlds.SEED_OF_RECORDS if world.is_exact else worlds.seed_of_run(os.environ) if is_hooked else None
        rank = world.rank if world.is_exact else world.processes.rank
        self.generators = Generators(rank, seed, are_keyed=world.is_exact)
        self.generators.is_single = world.is_alone
        self.sharded_loaders = WeakKeyDictionary()
        self.is_main = world.processes.rank == 0
        self.files = Files(is_closed=not self.is_main, before_meeting=self.before_joining)
        self.record = record.asked(os.environ, is_main=self.is_main)
        self.parallelism = self.new_parallelism()
        self.is_reordered = self.record is not None and self.record.order.is_reordered
        self.first_step = FirstStep(is_main=self.is_main, say=self.say)
        self.first_step.is_due = options.checks_first_step and self.parallelism.is_as_one_device
        self.suit_first_step()
        self.later, self.bits = LaterSteps(self), BitWatch(self)
        cuts_draws = world.size > 1 and self.parallelism.cuts_draws
        self.draws = Draws(world, self.generators, self.say, is_on=cuts_draws, takes_all=options.draws_all)
        self.calls = self.parallelism.kind_of_calls(self)
        self.trials = RowTrials(self)
        self.raised, self.late_hooks = Raised(world), LateHooks()
        self.keys = Keys(self.parallelism)
        self.ignore_index = IgnoreIndex()
        num_batches = self.record.order.batches if self.record is not None else 0
        self.batches_per_step = num_batches or world.size if options.keeps_batch else 1
        self.has_begun = False
        self._last_fraction = world.hosted / world.size

    def listen(self) -> None:
        before, after = events.before_step.listen, events.after_step.listen
        before("row trials", self.trials.at_step)
        before("children", self.is_in_child)
        before("parallelism", lambda optimizer: self.parallelism.before_step(optimizer), why=_WHY)
        before("draws", self.draws.compare)
        after("parallelism", self._after_step, why="Steps are counted.")
        if self.record is not None:
            steps.listen_to(self.record, lambda: self.parallelism)
            return
        self.first_step.listen(self)
        self.bits.listen()
        if self.first_step.is_due:
            self.later.listen()

    # What hooks and loops call

    def guarded_pid(self) -> int:
        """Return the process that ends when one of its children trains; 0 where children may train."""
        return 0 if self.is_aside else self._pid

    def begin(self, loader: "DataLoader[object]") -> Any:
        """Return the iterator of a loader: sharded for training, whole for evaluation."""
        if not self.is_at_home or self.is_aside:  # a worker may use loaders of its own
            return iterate(loader)
        if not torch.is_grad_enabled():
            self.parallelism.sync_weights()
        if self.begins_training():
            self.begin_training()
        elif self.options.shards_evaluation:
            self.prepare()
        else:
            return WholeLoop(loader, self)
        return Loop(loader, self) if self.parallelism.shares_batches else WholeLoop(loader, self)

    def begin_training(self) -> None:
        """Meet the other ranks; the first time, say so, once an oracle is on its way."""
        self._send_oracle(before_device=False)
        self.prepare()
        if not self.has_begun:
            self._tell()
        self.has_begun = True
        if self.record is not None:
            self.first_step.keep_dropout_off()
        elif not self.world.is_alone or self.first_step.is_oracle:
            self._begin_first_step()
        self.parallelism.apply()

    def _begin_first_step(self) -> None:
        """Compare the first steps; dropout stays on in them where ranks draw what one device draws."""
        if self.first_step.is_due:
            self.first_step.keeps_dropout |= self.draws.is_on
            self.draws.is_compared = True
        self.first_step.begin()

    def _tell(self) -> None:
        """Say how the script is scaled; ranks that must draw the same numbers begin where rank 0 stands."""
        if self.is_hooked and self.world.processes.size > 1 and not self.world.is_exact:
            self.generators.follow(self.world.processes)  # a script may seed with the time
        if not self.world.is_alone:
            self.say(self.parallelism.headline())

    def watch_devices(self) -> None:
        if self.is_main and not self.world.is_alone and self.record is None:
            devices.before_first_use(lambda: self._send_oracle(before_device=True))

    def _send_oracle(self, *, before_device: bool) -> None:
        if self.record is not None or self.world.is_alone or not self.is_at_home:
            return
        if self.first_step.send_ahead(before_device=before_device):
            self._become_oracle()

    def _become_oracle(self) -> None:
        """Go on as one device that has whole batches, up to the first steps."""
        self._pid = os.getpid()
        leave_workers()
        self.sharded_loaders = WeakKeyDictionary()
        self.world = worlds.World(0, 1, self.world.device)
        if not self.parallelism.draws_as_one:
            self.generators.continue_as_one_device()
        self.parallelism.continue_as_one_device()
        self.files.close_fork()
        self.first_step.on_end_of_oracle(self.files.remove_own)
        self.draws.continue_as_one_device()
        self.calls.continue_as_one_device()

    def stand_aside(self) -> None:
        """Leave a script alone that turns out to share the work by itself."""
        self.say("not scaled: the script calls torch.distributed.init_process_group()")
        self.is_aside = True
        self.batches_per_step = 1
        self.world = self.world._replace(size=1, together=None)
        self.parallelism.continue_as_one_device()
        self.draws.continue_as_one_device()
        self.files.is_closed = False
        self.first_step.cancel("")

    def _after_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.parallelism.num_steps == 1 and self.is_hooked and not (self.has_begun or self.world.is_alone):
            self.say(STEP_OF_NO_BATCH)
        self.parallelism.after_step(optimizer)

    def join(self) -> None:
        """Meet the other ranks, with the device in use; where there is one the oracle has been there before."""
        self.before_joining()
        worlds.join(self.world)

    def before_joining(self) -> None:
        """Let the oracle go first, where ranks that meet begin to use their devices."""
        if not dist.is_initialized() and devices.is_accelerator(self.world.device):
            self._send_oracle(before_device=True)

    def backward(self, loss: torch.Tensor, run_backward: Callable[[torch.Tensor], None]) -> None:
        if self.is_in_child():
            run_backward(loss)
            return
        self.raised.refuse_if_caught()
        with events.computing, self.late_hooks.around_backward(self.parallelism):
            aliases.copy_changes()
            if self.world.is_alone:
                run_backward(loss)
            else:
                self.parallelism.backward(loss, run_backward, self.calls)
        events.loss(loss)
