"""One training on several ranks: the loaders, the gradients and the random numbers of a script, tied together."""

import os
from typing import TYPE_CHECKING, Any, Callable, Mapping, Optional, Sequence, Union

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from .. import records
from ..scale_options import DEFAULT, ScaleOptions
from . import child_training
from . import device as devices
from . import world as worlds
from .batches import leave_workers
from .buckets import DEFAULT_MEGABYTES, Buckets
from .caught_errors import Raised
from .check.first_step import FirstStep
from .check.later_steps import LaterSteps
from .check.pace import Pace
from .check.step_observer import StepObserver
from .compression import ONE_BUCKET_MEGABYTES, is_of_matrices
from .exact.keys import Keys
from .files.sharing import Files
from .gradients import Gradients
from .headline import headline
from .late_hooks import LateHooks
from .local_sgd.gradients import OwnGradients
from .local_sgd.meetings import Rule
from .loops import Loop, ShardedLoader, WholeLoop, iterate, new_twins
from .proof import record
from .refusal import Refusal
from .rng import Draws
from .streams import Streams
from .training import Training
from .unshared_batch import refusal
from .view import aliases
from .view.calls import Calls
from .view.model_calls import ModelCalls
from .view.pieces import Pieces
from .view.signs import Signs
from .view.tensors import Partial, View, plain

if TYPE_CHECKING:
    from .parallel.state_files import State
    from .parallel.strategy import Strategy
    from .parallel.training import Parallel

Floats = Union[torch.Tensor, float]


class Run(Training):
    """What `echelon.start()` returns; it works alone on one process too."""

    def __init__(self, world: worlds.World, *, is_hooked: bool, options: ScaleOptions = DEFAULT) -> None:
        super().__init__()
        self.world = world
        self.is_hooked = is_hooked
        self.options = options
        self.is_aside = False
        """Whether the script turned out to share the work by itself."""
        seed = worlds.SEED_OF_RECORDS if world.is_exact else worlds.seed_of_run(os.environ) if is_hooked else None
        rank = world.rank if world.is_exact else world.processes.rank
        self.streams = Streams(rank, seed, are_keyed=world.is_exact)
        self.twins = new_twins()
        self.is_main = world.processes.rank == 0
        self.is_split = options.splits_model and not world.is_alone
        self.files = Files(is_closed=not self.is_main, before_meeting=self.before_joining)
        self.record = record.asked(os.environ, is_main=self.is_main)
        self.gradients = self._new_gradients()
        self.is_reordered = bool(os.environ.get(records.REORDERED))
        self.first_step = FirstStep(is_main=self.is_main, say=self.say)
        self.first_step.is_due = options.checks_first_step and not options.steps_alone
        self.first_step.keeps_dropout = world.is_exact or self.gradients.draws_as_one
        self.first_step.syncs_batch_norm = options.syncs_batch_norm or self.is_split
        self.first_step.compares_buffers = not self.is_split
        pace = Pace(world, self.say)
        is_compared = self.first_step.is_due and self.record is None
        self.later = LaterSteps(self, pace) if is_compared else StepObserver(pace)
        draws_as_one = world.size > 1 and not (world.is_exact or options.steps_alone or self.is_split)
        self.draws = Draws(world, self.streams, self.say, is_on=draws_as_one, takes_all=options.draws_all)
        self.calls = self._new_calls()
        self.raised, self.late_hooks = Raised(world), LateHooks()
        self.keys = Keys(self.gradients)
        self.signs = Signs()
        self.batches_per_step = int(os.environ.get(records.BATCHES, 0)) or world.size if options.keeps_batch else 1
        self.has_begun = False
        self._last_fraction = world.hosted / world.size

    def _new_gradients(self) -> Gradients:
        options = self.options
        if self.is_split:
            from .split.gradients import SplitGradients

            return SplitGradients(self.world.processes, options.how, self.say, self.streams)
        if options.steps_alone and self.world.size > 1:
            rule = Rule(options.steps_alone, options.outer_learning_rate, options.outer_momentum, options.is_late)
            return OwnGradients(self.world, rule)
        megabytes = options.bucket_megabytes or (0.0 if self.is_hooked and self.record is None else DEFAULT_MEGABYTES)
        if is_of_matrices(options.compress):
            megabytes = ONE_BUCKET_MEGABYTES
        return Gradients(
            self.world,
            are_sharded=options.how == "fsdp" and self.world.size > 1,
            buckets=Buckets(self.world, megabytes=megabytes, say=self.say),
            compression=options.compress,
        )

    def _new_calls(self) -> ModelCalls:
        if not self.is_split:
            return Calls(self)
        from .split.calls import SplitCalls

        return SplitCalls(self)

    # What a person calls

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self.world.device

    def loader(self, loader: "DataLoader[Any]") -> Any:
        """Return an iterable with this rank's share of each batch, in the order of one device."""
        return ShardedLoader(loader, self)

    def model(self, model: nn.Module, *optimizers: torch.optim.Optimizer) -> nn.Module:
        """Put a model on this rank's device and have its gradients be those of the global batch."""
        for optimizer in optimizers:
            self.gradients.add(optimizer)
        return model.to(self.device)

    def parallelize(
        self,
        model: nn.Module,
        strategy: "Strategy",
        *,
        loss: Optional[Callable[..., torch.Tensor]] = None,
        count: Optional[Callable[[Any], int]] = None,
        blocks: Sequence[str] = (),
        plan: Optional[Mapping[str, Any]] = None,
        sample: Any = None,
        state: Optional["State"] = None,
        initialize: Optional[Callable[[nn.Module], Any]] = None,
    ) -> "Parallel":
        """Split a training as a strategy says, and return what steps, clips, saves and loads: docs/strategies.md.

        `loss` gives the mean over a batch's targets from outputs and targets (without it, the output is the loss),
        `count` over how many elements; `blocks` are names of modules that repeat, `plan` how the tensor axis cuts them,
        `sample` inputs of a batch for a pipeline, `state` the first weights or their file, and `initialize` gives a
        module of the meta device its first weights. StrategyError says what does not fit model, ranks or PyTorch.

        >>> trained = run.parallelize(model, echelon.Strategy(shard=2), loss=nn.functional.mse_loss)  # doctest: +SKIP
        """
        from .parallel.apply import ModelHints, parallelize

        self.first_step.cancel("all ranks must call run.parallelize() together")
        self.later = StepObserver(self.later.pace)
        hints = ModelHints(blocks, plan or {}, sample, state, initialize)
        return parallelize(self, model, strategy, hints, loss=loss, count=count)

    def mean(self, value: Floats) -> torch.Tensor:
        """Return the mean of a number over all ranks, by the samples that each has in the present batch."""
        self.join()
        if isinstance(value, View):
            tensor: torch.Tensor = plain(value)
            return tensor
        tensor = value if isinstance(value, torch.Tensor) else torch.tensor(float(value))
        return worlds.mean(self.world, tensor, self.weight)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.join()
        worlds.barrier(self.world)

    # What hooks and loops call

    def guarded_pid(self) -> int:
        """Return the process that ends when one of its children trains; 0 where children may train."""
        return 0 if self.is_aside else self._pid

    def begin(self, loader: "DataLoader[Any]") -> Any:
        """Return the iterator of a loader: sharded for training, whole for evaluation."""
        if not self.is_at_home:  # a worker may use loaders of its own
            return iterate(loader)
        if not torch.is_grad_enabled():
            self.gradients.settle()
        if self.begins_training():
            self.begin_training()
        elif self.options.shards_evaluation:
            self.prepare()
        else:
            return WholeLoop(loader, self)
        return WholeLoop(loader, self) if self.is_split else Loop(loader, self)

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
        self.gradients.shard()

    def _begin_first_step(self) -> None:
        """Compare the first steps; dropout stays on in them where ranks draw what one device draws."""
        if self.first_step.is_due:
            self.first_step.keeps_dropout |= self.draws.is_on
            self.draws.is_compared = True
        self.first_step.begin()

    def _tell(self) -> None:
        """Say how the script is scaled; ranks that must draw the same numbers begin where rank 0 stands."""
        if self.is_hooked and self.world.processes.size > 1 and not self.world.is_exact:
            self.streams.follow(self.world.processes)  # a script may seed with the time
        if not self.world.is_alone:
            self.say(self.gradients.headline or headline(self.world, self.options))

    def watch_devices(self) -> None:
        """Let the oracle go first, wherever this process is about to use a device."""
        if self.is_main and not self.world.is_alone and self.record is None:
            devices.before_first_use(lambda: self._send_oracle(before_device=True))

    def _send_oracle(self, *, before_device: bool) -> None:
        """Send an oracle ahead, which is this process as one device."""
        if self.record is not None or self.world.is_alone or not self.is_at_home:
            return
        if self.first_step.send_ahead(before_device=before_device):
            self._become_oracle()

    def _become_oracle(self) -> None:
        """Go on as one device that has whole batches, up to the first steps."""
        self._pid = os.getpid()
        leave_workers()
        self.twins = new_twins()
        self.world = worlds.World(0, 1, self.world.device)
        if not self.gradients.draws_as_one:
            self.streams.become_alone()
        self.gradients.become_alone()
        self.files.close_fork()
        self.first_step.on_end_of_oracle(self.files.remove_own)
        self.draws.become_alone()
        self.calls.become_alone()

    def stand_aside(self) -> None:
        """Leave a script alone that turns out to share the work by itself."""
        self.say("not scaled: the script calls torch.distributed.init_process_group()")
        self.is_aside = True
        self.world = self.world._replace(size=1, together=None)
        self.is_split = False
        self.gradients.become_alone()
        self.draws.become_alone()
        self.files.is_closed = False
        self.first_step.cancel("")

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the gradients whole before an optimizer uses them, and compare the first ones."""
        if not self.is_at_home and not self.world.is_alone:
            child_training.meet(self._pid)
            return
        self.gradients.before_step(optimizer)
        self.draws.compare()
        if self.record is not None:
            with self.gradients.shown():
                self.record.before_step(optimizer, self.gradients.parameters())
        elif self.first_step.is_open:
            with self.gradients.shown():
                self.first_step.guesses = self.draws.guesses
                self.first_step.num_samples = self.calls.num_samples
                try:
                    self.first_step.before_step(self.gradients, optimizer, was_drawn=self.streams.was_drawn)
                except Refusal as error:
                    if self.calls.doubt is None:
                        raise
                    error.withdraw()
                    raise Refusal(*self.calls.doubt) from error
        self.draws.is_compared &= self.first_step.is_open
        self.later.before_step(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Notice that an optimizer has stepped."""
        self.gradients.after_step(optimizer)
        self.later.after_step(optimizer)

    def prepare(self) -> None:
        """Meet the other ranks and agree on the weights."""
        self.join()
        self.gradients.prepare()

    def join(self) -> None:
        """Meet the other ranks, with the device in use; where there is one the oracle has been there before."""
        self.before_joining()
        worlds.join(self.world)

    def before_joining(self) -> None:
        """Let the oracle go first, where ranks that meet begin to use their devices."""
        if not dist.is_initialized() and devices.is_accelerator(self.world.device):
            self._send_oracle(before_device=True)

    def backward(self, loss: torch.Tensor, run_backward: Callable[[torch.Tensor], None]) -> None:
        """Run a loss's backward for the global batch."""
        if not self.is_at_home and not self.world.is_alone:
            child_training.meet(self._pid)
            run_backward(loss)
            return
        self.raised.refuse_if_caught()
        with self.later.pace.part("model"), self.late_hooks.around_backward(self.gradients):
            self._backward(loss, run_backward)
        if self.record is not None and loss.numel() == 1:
            self.record.loss = float(plain(loss).detach())

    def _backward(self, loss: torch.Tensor, run_backward: Callable[[torch.Tensor], None]) -> None:
        aliases.settle()
        if self.world.is_alone:
            run_backward(loss)
        elif self.is_split:
            self.gradients.backward(loss, run_backward)
        elif self.calls.num_shared or self.calls.num_counted or isinstance(loss, View):
            self.gradients.prepare()
            if self.world.is_exact:
                self._backward_of_shards(loss, run_backward)
            elif isinstance(loss, Partial):
                self._backward_of_total(loss, run_backward)
            else:
                self.gradients.backward(loss.whole() if isinstance(loss, View) else loss, run_backward)
        else:
            raise refusal(loss, self.calls.unshared, self.world.size, self.gradients.has_optimizers)

    def _backward_of_total(self, loss: Partial, run_backward: Callable[[torch.Tensor], None]) -> None:
        """Compute the gradients of this rank's part of a loss; its value, and what is in doubt, travel meanwhile."""
        doubt = loss.doubt
        if doubt is not None and not self.gradients.may_be_multiplied(loss.unsettled):
            doubt = None
        part = (loss.local if doubt is None else loss.unsettled) * self.world.size
        if not self.options.steps_alone:
            loss.start()
        self.gradients.backward(part, run_backward)
        if doubt is not None:
            loss.start()()  # it was under way as long as the gradients
            self.gradients.multiply(part, doubt.factor)

    def _backward_of_shards(self, loss: torch.Tensor, run_backward: Callable[[torch.Tensor], None]) -> None:
        """Compute the gradients of each virtual shard by itself; the value of the loss travels with them."""
        if not isinstance(loss, View):
            self.gradients.backward_of_shards(loss, run_backward)
            return
        if not isinstance(loss, Pieces) or not loss.is_total:
            raise Refusal(
                "with --exact the script calls backward() on a tensor with an entry for each sample",
                "call backward() on a single number: loss.mean().backward()",
            )
        loss.keep_value(self.gradients.backward_of_shards([one.local for one in loss.parts], run_backward))
