"""Every rank has every batch whole, and computes a part of the model."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...orders.scale import MODEL_PARALLEL
from ...pytorch import internals
from .. import fsdp, optimizer_kinds
from ..base_parallelism import Parallelism, Setup
from ..check import signature
from ..fsdp import give_parts, roots_of
from ..function_types import Args, Function, Kwargs
from ..global_tensors.model_calls import ModelCalls
from ..global_tensors.tensors import map_tensors, tensors_of
from ..model_parallel import hooks
from ..model_parallel.absent_weights import WITH_SEEDS, WITH_THE_BATCH, AbsentWeight
from ..modules import ReplacedParameters, weights_of
from ..scaling_error import ScalingError, is_about_parts
from ..strategies import norms, versions
from ..strategies.axes import Axes
from ..strategies.strategy import Strategy, StrategyError
from ..training import Training
from ..wire.gather import is_sharded, whole
from .calls import has_parameters

TOLERANCE = 1e-3
"""The relative difference that losses of the same batch may have: processors may differ in the last digits."""
_IN_WORDS = (
    (rf"\b({'|'.join(MODEL_PARALLEL)})=1\b", "echelon run -n 1 …"),
    (rf"\b({'|'.join(MODEL_PARALLEL)})=(\d+)", r"echelon run -n \2 --scale \1 …"),
    (r": run\.parallelize\(", ", in a script of echelon's own: run.parallelize("),
)
"""Patterns in hints of strategies, and their words for the command line."""


class WholeBatches(ModelCalls):
    """Calls models with the whole batch on every rank; a model is split before it is first trained."""

    def __init__(self, run: Training) -> None:
        super().__init__(run)
        self._run = run

    def call(self, original: Callable[..., object], module: nn.Module, args: Args, kwargs: Kwargs) -> Any:
        """Call a module; the outermost call is that of the whole model, on every rank."""
        run, models = self._run, self._run.parallelism
        assert isinstance(models, ModelParallel)  # noqa: S101
        if run.world.is_alone and run.generators.is_watched and not self.is_inside:
            if run.begins_training():
                run.begin_training()  # an oracle that was sent ahead before that
            with self._inside(None):
                return original(module, *args, **kwargs)
        if self.is_inside or os.getpid() != self._pid or not has_parameters(module):
            return original(module, *args, **kwargs)
        if run.begins_training():
            run.begin_training()
            models.compare_inputs((args, kwargs))
        if models.is_alone:
            return original(module, *args, **kwargs)
        self.is_inside = True
        try:
            return models.compute(original, module, args, kwargs)
        finally:
            self.is_inside = False


class ModelParallel(Parallelism):
    """A way to split models; a subclass says how."""

    kind_of_calls = WholeBatches
    shares_batches = False
    cuts_draws = False
    draws_as_one = True
    keeps_dropout = True
    cuts_weights = False
    """Whether weights that are split are cut, so that an optimizer sees parts of them."""
    what: str
    """The work of each rank, in words for the headline."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup._replace(world=setup.world.processes))
        self._generators = setup.generators
        self.roots: list[nn.Module] = []
        """The models that were split."""
        self._axes: Any = None
        self._replaced = ReplacedParameters()
        self._left_to_compare = signature.NUM_BATCHES
        self._settled: set[int] = set()

    @property
    def is_alone(self) -> bool:
        return self.world.size == 1

    def headline(self) -> str:
        return (f"scaled over {self.world.size} ranks: each gets the whole of every batch, and {self.what} "
        f"(--scale {self._options.how})")  # fmt: skip

    def install(self, run: Any) -> None:
        """Hook functions that would show a script a part of a model."""
        fsdp.install()
        hooks.install(run, self)

    @property
    def strategy(self) -> Strategy:
        wanted: Any = {self._options.how: self.world.size}
        return Strategy(**wanted)

    @property
    def axes(self) -> Axes:
        if self._axes is None:
            versions.check(self.strategy, self.world.device)
            self._axes = Axes(self.strategy, self.world)
        axes: Axes = self._axes
        return axes

    def optimizers(self) -> list[torch.optim.Optimizer | None]:
        """Return all optimizers in the order in which they were made, None for deleted optimizers."""
        return [known() for known in self._optimizers]

    def apply(self) -> None:
        if self.is_alone:
            return
        self.prepare()
        if any(id(parameter) not in self._settled for parameter in self._parameters):
            self._split_roots()
            self._remember()
            self._settled = {id(parameter) for parameter in self._parameters}

    def _split_roots(self) -> None:
        """Split every model with trained weights that is not split yet, and give its optimizers the parts."""
        plain = [parameter for parameter in self._parameters if not is_sharded(parameter)]
        known = {id(inner) for root in self.roots for inner in root.modules()}
        roots = [root for root in roots_of(plain) if id(root) not in known]
        for root in self._worth_it(roots):
            before = dict(root.named_parameters(remove_duplicate=False))
            with refusing():
                self.axes.broadcast_first([*root.parameters(), *root.buffers()])
                self.split(root)
            self.roots.append(root)
            self.follow(before, dict(root.named_parameters(remove_duplicate=False)))

    def compare_inputs(self, inputs: object) -> None:
        """Refuse inputs that differ between ranks, in the first calls of a model; all ranks raise the error."""
        if self.is_alone or not self._left_to_compare:
            return
        self._left_to_compare -= 1
        rank = signature.rank_with_other_batch(inputs, self.world)
        if rank:
            raise ScalingError(
                f"rank {rank} calls the model with another batch than rank 0, but the ranks must compute parts of the "
                "same batch",
                WITH_SEEDS,
            )

    def backward(self, loss: Any, run_backward: Callable[[torch.Tensor], None], calls: ModelCalls) -> None:  # noqa: ARG002
        """Run backward() on every rank, from the same loss."""
        if not self.roots:
            raise ScalingError(
                "the script called backward() before echelon split a model; every rank would train on the same batch",
                "call a torch.nn.Module, and step with a torch.optim optimizer, or " + WITH_THE_BATCH,
            )
        wait = self._begin_comparison(loss)
        run_backward(loss)
        self.finish(self._parameters)
        wait()

    def clip_grad_norm(self) -> Callable[..., object]:
        return hooks.Clipping(self).clip_grad_norm_

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.is_alone:
            self.refuse_optimizer(optimizer)
        super().before_step(optimizer)
        AbsentWeight.in_step = True

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: ARG002
        AbsentWeight.in_step = False

    def refuse_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an optimizer that needs more of a split weight than the part that a rank holds."""
        why = optimizer_kinds.why_needs_whole(type(optimizer))
        if why is None or not (self.cuts_weights or optimizer_kinds.needs_all_weights(type(optimizer))):
            return
        are_split = {id(one) for root in self.roots for one in root.parameters()}
        if any(id(one) in are_split for one in weights_of(optimizer)):
            raise ScalingError(why, "echelon run --scale data …, which keeps all weights on every rank")

    def follow(self, before: Mapping[str, nn.Parameter], after: Mapping[str, nn.Parameter]) -> None:
        changed = {id(old): (old, after[name]) for name, old in before.items() if after[name] is not old}
        for optimizer in self.optimizers():
            if optimizer is not None:
                give_parts(optimizer, {key: new for key, (_, new) in changed.items()})
                self.refuse_optimizer(optimizer)
        self._replaced.note(changed.values())

    def _worth_it(self, roots: list[nn.Module]) -> list[nn.Module]:
        """Return the models that can be split; every rank computes the other models whole."""
        return roots

    def _with_blocks(self, roots: list[nn.Module], is_known: Callable[[nn.Module], bool]) -> list[nn.Module]:
        """Leave small models beside a large one whole, such as a head; refuse if no model can be split."""
        known_roots = [root for root in roots if is_known(root)]
        if roots and not known_roots and not self.roots:
            with refusing():
                self.refuse_without_blocks(roots[0])
        for root in roots:
            if root not in known_roots:
                self._say(
                    f"note: echelon recognizes no layers in {type(root).__name__}, so every rank computes "
                    "the whole model"
                )
        return known_roots

    def refuse_without_blocks(self, root: nn.Module) -> None:
        """Raise an error that says why a model cannot be split."""

    def split(self, root: nn.Module) -> None:
        raise NotImplementedError

    def compute(self, original: Function, module: nn.Module, args: Args, kwargs: Kwargs) -> Any:
        """Call a module from outside of all other modules; every rank gets the whole output."""
        try:
            output = original(module, *args, **kwargs)
        except (NotImplementedError, RuntimeError, AssertionError, LookupError, ValueError) as error:
            if isinstance(error, ScalingError) or not is_about_parts(error):
                raise
            raise ScalingError(
                "{} uses an operation that PyTorch cannot do with cut tensors (--scale {}): {}".format(
                    type(module).__name__, self._options.how, str(error).partition("\n")[0]
                ),
                WITH_THE_BATCH,
            ) from error
        if not any(is_sharded(one) for one in tensors_of(output)):
            return output
        return map_tensors(output, whole)

    def finish(self, parameters: Sequence[nn.Parameter]) -> None:
        """Finish gradients after a backward(): complete sums over ranks, and gather the gradients of whole weights."""
        norms.finish(parameters)
        for parameter in parameters:
            if not is_sharded(parameter) and is_sharded(parameter.grad):
                parameter.grad = whole(parameter.grad)

    def current_parameter(self, parameter: object) -> Any:
        """Return the current parameter for a parameter that a script kept from before the split."""
        return self._replaced.current_parameter(parameter)

    def are_parts(self, gradients: Sequence[Any]) -> list[bool]:
        """Return for each gradient whether it is cut: other ranks then hold other parts of it."""
        return [is_sharded(one) and not all(each.is_replicate() for each in one.placements) for one in gradients]

    def has_part_of(self, module: nn.Module) -> bool:
        """Say whether some weights of a module are on other ranks."""
        return any(is_sharded(one) for one in module.parameters())

    def _begin_comparison(self, loss: torch.Tensor) -> Callable[[], None]:
        """Begin to compare the losses of all ranks; the communication overlaps with backward."""
        value = whole(loss.detach()).double().mean()
        both = torch.stack([value, -value])
        work = dist.all_reduce(both, op=dist.ReduceOp.MAX, async_op=True)

        def wait() -> None:
            work.wait()
            most, least = float(both[0]), -float(both[1])
            if most - least > TOLERANCE * max(abs(most), abs(least)):
                raise ScalingError(
                    f"the ranks computed different losses for the same batch: from {least:.6g} to {most:.6g}",
                    WITH_SEEDS,
                )

        return wait


def refuse_batch_norms(root: nn.Module, needs: str, hint: str) -> None:
    for name, module in root.named_modules():
        if isinstance(module, internals.BatchNormLayer):
            raise StrategyError(f"{name} is a BatchNorm, which needs {needs}", hint=hint)


@contextmanager
def refusing() -> Iterator[None]:
    """Turn a StrategyError into a ScalingError with a hint for the command line."""
    try:
        yield
    except StrategyError as error:
        hint = error.hint
        for pattern, words in _IN_WORDS:
            hint = re.sub(pattern, words, hint)
        raise ScalingError(error.message, f"{hint}; or {WITH_THE_BATCH}") from None
