"""The explicit form: what a script calls that has a run."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import nn
from torch.utils.data import DataLoader

from .base_parallelism import Parallelism
from .check.later_steps import LaterSteps
from .exact.keys import Keys
from .global_tensors.tensors import GlobalTensor, plain
from .loops import ShardedLoader
from .parallelism import choice
from .training import Training
from .wire import world as worlds

if TYPE_CHECKING:
    from .checkpoints.saving import Checkpoints
    from .parallelism.trained import ParallelModel
    from .strategies.parallel import Parallel
    from .strategies.states import State
    from .strategies.strategy import Strategy

Floats = torch.Tensor | float


class Explicit(Training):
    """What a person calls."""

    later: LaterSteps

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self.world.device

    def loader(self, loader: "DataLoader[object]") -> ShardedLoader:
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
        self, model: nn.Module, strategy: type[Parallelism], *, loss: Callable[..., torch.Tensor] | None = None
    ) -> "ParallelModel": ...

    @overload
    def parallelize(
        self,
        model: nn.Module,
        strategy: "Strategy",
        *,
        loss: Callable[..., torch.Tensor] | None = None,
        count: Callable[[Any], int] | None = None,
        blocks: Sequence[str] = (),
        plan: Mapping[str, object] | None = None,
        sample: object = None,
        state: "State | None" = None,
        initialize: Callable[[nn.Module], object] | None = None,
    ) -> "Parallel": ...

    def parallelize(
        self,
        model: nn.Module,
        strategy: "Strategy | type[Parallelism]",
        *,
        loss: Callable[..., torch.Tensor] | None = None,
        count: Callable[[Any], int] | None = None,
        blocks: Sequence[str] = (),
        plan: Mapping[str, object] | None = None,
        sample: object = None,
        state: "State | None" = None,
        initialize: Callable[[nn.Module], object] | None = None,
    ) -> "Parallel | ParallelModel":
        """Split a training as a strategy says, and return what steps, clips, saves and loads: docs/strategies.md.

        `loss` gives the mean over a batch's targets from outputs and targets (without it, the output is the loss),
        `count` over how many elements; `blocks` are names of modules that repeat, `plan` how the tensor axis cuts them,
        `sample` inputs of a batch for a pipeline, `state` the first weights or their file, and `initialize` gives a
        module of the meta device its first weights. In place of a strategy a class of parallelism may be given,
        as --scale has it; it needs only the loss. StrategyError says what does not fit model, ranks or PyTorch.

        >>> trained = run.parallelize(model, echelon.Strategy(shard=2), loss=nn.functional.mse_loss)  # doctest: +SKIP
        """
        from .parallelism.trained import ParallelModel
        from .strategies.apply import ModelHints, parallelize
        from .strategies.strategy import Strategy

        if not isinstance(strategy, Strategy):
            self.use(strategy)
            return ParallelModel(self, model, loss)
        self._compare_nothing("all ranks must call run.parallelize() together")
        hints = ModelHints(blocks, plan or {}, sample, state, initialize)
        return parallelize(self, model, strategy, hints, loss=loss, count=count)

    def checkpoint(self, *, every: str = "10m", **named: object) -> "Checkpoints":
        """Save this training as it goes, and continue it: echelon.checkpoints(), which has an example."""
        from .checkpoints.saving import Checkpoints

        return Checkpoints(every, named, [self.generators], self.keys)

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

    def new_parallelism(self) -> Parallelism:
        """Make the parallelism that the options ask for."""
        return choice.choose(self.setup())

    def use(self, kind: type[Parallelism]) -> None:
        """Share the training in another way from now on, before anything is trained."""
        self._refuse(kind)
        if type(self.parallelism) is kind:
            return  # another model of the same training
        before, self.parallelism = self.parallelism, kind(self.setup())
        self.parallelism.observers = before.observers  # which hooks know
        for optimizer in before.known_optimizers():
            self.parallelism.add(optimizer)
        self.suit_first_step()
        if not kind.cuts_draws:
            self.draws.continue_as_one_device()
        if not kind.is_as_one_device:
            self._compare_nothing("the parallelism of the script is not that of one device")
        self.keys = Keys(self.parallelism)
        self.calls = self.calls.succeeded_by(kind.kind_of_calls(self))
        self.parallelism.install(self)

    def _refuse(self, kind: object) -> None:
        """Refuse what is no parallelism, or comes too late."""
        from .strategies.strategy import StrategyError

        why_not = "is an object" if isinstance(kind, Parallelism) else choice.reason_against(kind)
        if why_not:
            raise StrategyError(
                "run.parallelize() takes a strategy or a class of parallelism, but got {!r}, which {}".format(
                    getattr(kind, "__name__", kind), why_not
                ),
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
        self.later.cancel()
