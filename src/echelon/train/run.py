"""One training on several ranks: the loaders, the gradients and the random numbers of a script, tied together."""

import os
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Optional, Sequence, Type, Union, overload

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from ..orders import checkpoint, records
from ..orders.scale import DEFAULT, ScaleOptions
from . import child_training
from .batches import STEP_OF_NO_BATCH, leave_workers
from .buckets import DEFAULT_MEGABYTES
from .caught_errors import Raised
from .check.first_step import FirstStep
from .check.later_steps import LaterSteps
from .check.pace import Pace, StepObserver
from .check.row_trial import RowTrials
from .exact.keys import Keys
from .files.sharing import Files
from .global_tensors import aliases
from .global_tensors.ignore_index import IgnoreIndex
from .global_tensors.tensors import GlobalTensor, plain, tensors_of
from .gradient_hooks import LateHooks
from .loops import Loop, ShardedLoader, WholeLoop, iterate, new_twins
from .parallelism import choice
from .parallelism.base import Parallelism, Setup
from .recording import record
from .rng.draws import Draws
from .rng.generators import Generators
from .training import Training
from .wire import device as devices
from .wire import world as worlds

if TYPE_CHECKING:
    from .checkpoints.saving import Checkpoints
    from .parallelism.trained import Trained
    from .strategies.parallel import Parallel
    from .strategies.states import State
    from .strategies.strategy import Strategy

Floats = Union[torch.Tensor, float]


class Run(Training):
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
        self.twins = new_twins()
        self.is_main = world.processes.rank == 0
        self.files = Files(is_closed=not self.is_main, before_meeting=self.before_joining)
        self.record = record.asked(os.environ, is_main=self.is_main)
        self.parallelism = self.new_parallelism()
        self.is_reordered = bool(os.environ.get(records.REORDERED))
        self._is_nudged = self.record is not None and bool(os.environ.get(records.NUDGED))
        self.first_step = FirstStep(is_main=self.is_main, say=self.say)
        self.first_step.is_due = options.checks_first_step and self.parallelism.is_as_one_device
        self._follow_parallelism()
        pace = Pace(world, self.say)
        is_compared = self.first_step.is_due and self.record is None
        self.later = LaterSteps(self, pace) if is_compared else StepObserver(pace)
        cuts_draws = world.size > 1 and self.parallelism.cuts_draws
        self.draws = Draws(world, self.generators, self.say, is_on=cuts_draws, takes_all=options.draws_all)
        self.calls = self.parallelism.kind_of_calls(self)
        self.trials = RowTrials(self)
        self.raised, self.late_hooks = Raised(world), LateHooks()
        self.keys = Keys(self.parallelism)
        self.ignore_index = IgnoreIndex()
        self.batches_per_step = int(os.environ.get(records.BATCHES, 0)) or world.size if options.keeps_batch else 1
        self.has_begun = False
        self._last_fraction = world.hosted / world.size

    def _follow_parallelism(self) -> None:
        """Compare the first step as the parallelism allows."""
        self.first_step.keeps_dropout = self.parallelism.keeps_dropout
        self.first_step.syncs_batch_norm = self.options.syncs_batch_norm or not self.parallelism.shares_batches
        self.first_step.compares_buffers = self.parallelism.shares_batches

    def new_parallelism(self) -> Parallelism:
        """Make the parallelism that the options ask for."""
        return choice.choose(self._setup())

    def _setup(self) -> Setup:
        is_saved = checkpoint.VARIABLE in os.environ and self.world.size > 2  # two numbers have one sum
        megabytes = 0.0 if self.is_hooked and self.record is None and not is_saved else DEFAULT_MEGABYTES
        return Setup(self.world, self.options, self.say, self.generators, is_saved, megabytes)

    # What a person calls

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self.world.device

    def loader(self, loader: "DataLoader[Any]") -> Any:
        """Return an iterable over the loader's batches, in the order of one device.

        A batch shows the shape of the global batch, [batch, …]; this rank holds its rows. The batch must have at least
        as many samples as there are ranks; else the script ends with the reason and the repair.
        """
        return ShardedLoader(loader, self)

    def model(self, model: nn.Module, *optimizers: torch.optim.Optimizer) -> nn.Module:
        """Put a model on this rank's device, and return it; optimizers then step along gradients of the global batch.

        The weights are those of rank 0. A model with parameters on several devices is refused.
        """
        for optimizer in optimizers:
            self.parallelism.add(optimizer)
        return model.to(self.device)

    @overload
    def parallelize(
        self, model: nn.Module, strategy: Type[Parallelism], *, loss: Optional[Callable[..., torch.Tensor]] = None
    ) -> "Trained": ...

    @overload
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
    ) -> "Parallel": ...

    def parallelize(
        self,
        model: nn.Module,
        strategy: "Union[Strategy, Type[Parallelism]]",
        *,
        loss: Optional[Callable[..., torch.Tensor]] = None,
        count: Optional[Callable[[Any], int]] = None,
        blocks: Sequence[str] = (),
        plan: Optional[Mapping[str, Any]] = None,
        sample: Any = None,
        state: Optional["State"] = None,
        initialize: Optional[Callable[[nn.Module], Any]] = None,
    ) -> "Union[Parallel, Trained]":
        """Split a training as a strategy says, and return what steps, clips, saves and loads: docs/strategies.md.

        `loss` gives the mean over a batch's targets from outputs and targets (without it, the output is the loss),
        `count` over how many elements; `blocks` are names of modules that repeat, `plan` how the tensor axis cuts them,
        `sample` inputs of a batch for a pipeline, `state` the first weights or their file, and `initialize` gives a
        module of the meta device its first weights. In place of a strategy a class of parallelism may be given,
        as --scale has it; it needs only the loss. StrategyError says what does not fit model, ranks or PyTorch.

        >>> trained = run.parallelize(model, echelon.Strategy(shard=2), loss=nn.functional.mse_loss)  # doctest: +SKIP
        """
        from .parallelism.trained import Trained
        from .strategies.apply import ModelHints, parallelize
        from .strategies.strategy import Strategy

        if not isinstance(strategy, Strategy):
            self.use(strategy)
            return Trained(self, model, loss)
        self._compare_nothing("all ranks must call run.parallelize() together")
        hints = ModelHints(blocks, plan or {}, sample, state, initialize)
        return parallelize(self, model, strategy, hints, loss=loss, count=count)

    def checkpoint(self, *, every: str = "10m", **named: Any) -> "Checkpoints":
        """Save this training as it goes, and continue it: echelon.checkpoints(), which has an example."""
        from .checkpoints.saving import Checkpoints

        return Checkpoints(every, named, [self.generators], self.keys)

    def use(self, kind: Type[Parallelism]) -> None:
        """Share the training in another way from now on, before anything is trained."""
        self._refuse(kind)
        if type(self.parallelism) is kind:
            return  # another model of the same training
        before, self.parallelism = self.parallelism, kind(self._setup())
        self.parallelism.observers = before.observers  # which hooks know
        for optimizer in before.known_optimizers():
            self.parallelism.add(optimizer)
        self._follow_parallelism()
        if not kind.cuts_draws:
            self.draws.become_alone()
        if not kind.is_as_one_device:
            self._compare_nothing("the parallelism of the script is not that of one device")
        self.keys = Keys(self.parallelism)
        self.calls = self.calls.succeeded_by(kind.kind_of_calls(self))
        self.parallelism.install(self)

    def _refuse(self, kind: Any) -> None:
        """Refuse what is no parallelism, or comes too late."""
        from .strategies.strategy import StrategyError

        why_not = "is an object" if isinstance(kind, Parallelism) else choice.reason_against(kind)
        if why_not:
            raise StrategyError(
                "run.parallelize() takes a strategy or a class of parallelism, but got %r, which %s"
                % (getattr(kind, "__name__", kind), why_not),
                hint="run.parallelize(model, echelon.Strategy(…)), or run.parallelize(model, echelon.Replicated)",
            )
        if self.has_begun or self.world.is_exact:
            exact = "an exact training adds up gradients in an order of its own"
            raise StrategyError(
                "the training has begun with another parallelism" if self.has_begun else exact,
                hint="call run.parallelize() before the first batch, after echelon.start() without exact",
            )

    def _compare_nothing(self, why: str) -> None:
        self.first_step.cancel(why)
        self.later = StepObserver(self.later.pace)

    def mean(self, value: Floats) -> torch.Tensor:
        """Return the mean of a number over all ranks, weighted by the samples of each in the present batch.

        `value` is a number or a tensor of any shape, equal on all ranks; the mean has this shape, and no gradient.
        """
        self.join()
        if isinstance(value, GlobalTensor):
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
        if not self.is_at_home or self.is_aside:  # a worker may use loaders of its own
            return iterate(loader)
        if not torch.is_grad_enabled():
            self.parallelism.settle()
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
        """Let the oracle go first, wherever this process is about to use a device."""
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
        self.twins = new_twins()
        self.world = worlds.World(0, 1, self.world.device)
        if not self.parallelism.draws_as_one:
            self.generators.become_alone()
        self.parallelism.become_alone()
        self.files.close_fork()
        self.first_step.on_end_of_oracle(self.files.remove_own)
        self.draws.become_alone()
        self.calls.become_alone()

    def stand_aside(self) -> None:
        """Leave a script alone that turns out to share the work by itself."""
        self.say("not scaled: the script calls torch.distributed.init_process_group()")
        self.is_aside = True
        self.batches_per_step = 1
        self.world = self.world._replace(size=1, together=None)
        self.parallelism.become_alone()
        self.draws.become_alone()
        self.files.is_closed = False
        self.first_step.cancel("")

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make the gradients whole before an optimizer uses them, and compare the first ones."""
        self.trials.at_step()
        if not self.is_at_home and not self.world.is_alone:
            child_training.meet(self._pid)
            return
        self.parallelism.before_step(optimizer)
        self.draws.compare()
        if self.record is not None:
            with self.parallelism.shown():
                if self._is_nudged:
                    from .recording.observe import nudge

                    nudge(self.parallelism.parameters_of(optimizer))
                self.record.before_step(optimizer, self.parallelism.parameters())
        elif self.first_step.is_open:
            with self.parallelism.shown():
                self.first_step.guesses = self.draws.guesses
                self.first_step.num_samples = self.calls.num_samples
                self.first_step.before_step(self.parallelism, optimizer, was_drawn=self.generators.was_drawn)
        self.draws.is_compared &= self.first_step.is_open
        self.later.before_step(optimizer)

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Notice that an optimizer has stepped."""
        if self.parallelism.num_steps == 1 and self.is_hooked and not (self.has_begun or self.world.is_alone):
            self.say(STEP_OF_NO_BATCH)
        self.parallelism.after_step(optimizer)
        self.later.after_step(optimizer)

    def prepare(self) -> None:
        """Meet the other ranks and agree on the weights."""
        self.join()
        self.parallelism.prepare()

    def join(self) -> None:
        """Meet the other ranks, with the device in use; where there is one the oracle has been there before."""
        self.before_joining()
        worlds.join(self.world)

    def before_joining(self) -> None:
        """Let the oracle go first, where ranks that meet begin to use their devices."""
        if not dist.is_initialized() and devices.is_accelerator(self.world.device):
            self._send_oracle(before_device=True)

    def at_batch(self, batch: Any, indices: List[Any]) -> None:
        """Note a batch of the script, and the samples that it has on all ranks."""
        self.later.at_batch(indices)
        if self.record is not None:
            self.record.batch = tensors_of(batch), indices

    def backward(self, loss: torch.Tensor, run_backward: Callable[[torch.Tensor], None]) -> None:
        """Run a loss's backward for the global batch."""
        if not self.is_at_home and not self.world.is_alone:
            child_training.meet(self._pid)
            run_backward(loss)
            return
        self.raised.refuse_if_caught()
        with self.later.pace.part("model"), self.late_hooks.around_backward(self.parallelism):
            self._backward(loss, run_backward)
        if self.record is not None and loss.numel() == 1:
            self.record.set_loss(float(plain(loss).detach()))

    def _backward(self, loss: torch.Tensor, run_backward: Callable[[torch.Tensor], None]) -> None:
        aliases.settle()
        if self.world.is_alone:
            run_backward(loss)
        else:
            self.parallelism.backward(loss, run_backward, self.calls)
