"""What the ways to split a model have in common: which models are split, and that optimizers follow."""

import re
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, ContextManager, Iterator, List, Mapping, Optional, Sequence

import torch
from torch import nn

from .. import optimizer_kinds
from ..former import Former
from ..parallel import norms, versions
from ..parallel.axes import Axes
from ..parallel.strategy import Strategy, StrategyError
from ..refusal import Refusal, is_about_parts
from ..shards import give_parts, roots_of
from ..streams import Streams
from ..view.tensors import map_tensors, tensors_of
from ..wholes import is_sharded, whole
from ..world import World

_IN_WORDS = (
    (r"\b(tensor|context|pipeline)=1\b", "echelon run -n 1 …"),
    (r"\b(tensor|context|pipeline)=(\d+)", r"echelon run -n \2 --scale \1 …"),
    (r": run\.parallelize\(", ", in a script of echelon's own: run.parallelize("),
)
"""Hints of strategies, and what they are on the command line."""
WITH_THE_BATCH = "echelon run --scale data …, or --scale fsdp"
WITH_SEEDS = (
    "draw all random numbers with torch, numpy.random or random, or with a generator that has a seed "
    "(numpy.random.default_rng(0)); or " + WITH_THE_BATCH
)


class Split:
    """A way to split models; a subclass says how."""

    name: str
    what: str
    """What each rank computes."""
    draws_as_one = True
    cuts_weights = False

    def __init__(self, world: World, say: Callable[[str], None], streams: Streams) -> None:
        self.world = world
        self.say = say
        self.streams = streams
        self.roots: List[nn.Module] = []
        """The models that were split."""
        self.optimizers: Callable[[], List[Optional[torch.optim.Optimizer]]] = list
        """Return all optimizers in the order in which they were made, None for those that are gone."""
        self._axes: Any = None
        self._former = Former()

    @property
    def strategy(self) -> Strategy:
        """Return what `run.parallelize` would be given."""
        wanted: Any = {self.name: self.world.size}
        return Strategy(**wanted)

    @property
    def axes(self) -> Axes:
        """Return the mesh of all ranks."""
        if self._axes is None:
            versions.check(self.strategy, self.world.device)
            self._axes = Axes(self.strategy, self.world)
        found: Axes = self._axes
        return found

    def apply(self, parameters: Sequence[nn.Parameter]) -> None:
        """Split every model that has trained weights and was not split yet, and let its optimizers have the parts."""
        plain = [one for one in parameters if not is_sharded(one)]
        known = {id(inner) for root in self.roots for inner in root.modules()}
        roots = [root for root in roots_of(plain) if id(root) not in known]
        for root in self._worth_it(roots):
            before = dict(root.named_parameters(remove_duplicate=False))
            with refusing():
                self.axes.broadcast_first([*root.parameters(), *root.buffers()])
                self.split(root)
            self.roots.append(root)
            self.follow(before, dict(root.named_parameters(remove_duplicate=False)))

    def refuse_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an optimizer that needs more than what a rank has of the weights that were split."""
        why = optimizer_kinds.why_needs_whole(type(optimizer))
        if why is None or not (self.cuts_weights or optimizer_kinds.needs_all_weights(type(optimizer))):
            return
        are_split = {id(one) for root in self.roots for one in root.parameters()}
        if any(id(one) in are_split for group in optimizer.param_groups for one in group["params"]):
            raise Refusal(why, "echelon run --scale data …, which keeps all weights on every rank")

    def follow(self, before: Mapping[str, nn.Parameter], after: Mapping[str, nn.Parameter]) -> None:
        """Let optimizers have the weights that a model has now."""
        changed = {id(old): (old, after[name]) for name, old in before.items() if after[name] is not old}
        for optimizer in self.optimizers():
            if optimizer is not None:
                give_parts(optimizer, {key: new for key, (_, new) in changed.items()})
                self.refuse_optimizer(optimizer)
        self._former.note(changed.values())

    def _worth_it(self, roots: List[nn.Module]) -> List[nn.Module]:
        """Return which of some models can be split; the others are computed whole by every rank."""
        return roots

    def _with_blocks(self, roots: List[nn.Module], is_known: Callable[[nn.Module], bool]) -> List[nn.Module]:
        """Leave small models beside a large one whole, such as a head; refuse where none can be split."""
        found = [root for root in roots if is_known(root)]
        if roots and not found and not self.roots:
            with refusing():
                self.refuse_without_blocks(roots[0])
        for root in roots:
            if root not in found:
                self.say(
                    "note: echelon recognizes no layers in %s, so every rank computes the whole model"
                    % type(root).__name__
                )
        return found

    def refuse_without_blocks(self, root: nn.Module) -> None:
        """Say why a model cannot be split."""

    def split(self, root: nn.Module) -> None:
        """Split one model."""
        raise NotImplementedError

    def compute(self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module from outside of any other; what comes out is whole on every rank."""
        try:
            output = original(module, *args, **kwargs)
        except (NotImplementedError, RuntimeError, AssertionError, LookupError, ValueError) as error:
            if isinstance(error, Refusal) or not is_about_parts(error):
                raise
            raise Refusal(
                "%s uses an operation that PyTorch cannot do with cut tensors (--scale %s): %s"
                % (type(module).__name__, self.name, str(error).partition("\n")[0]),
                WITH_THE_BATCH,
            ) from error
        if not any(is_sharded(one) for one in tensors_of(output)):
            return output
        return map_tensors(output, whole)

    def finish(self, parameters: Sequence[nn.Parameter]) -> None:
        """Make gradients what an optimizer uses, after a backward(): sums over ranks where there are parts of one."""
        norms.finish(parameters)
        for parameter in parameters:
            if not is_sharded(parameter) and is_sharded(parameter.grad):
                parameter.grad = whole(parameter.grad)

    def present(self, parameter: Any) -> Any:
        """Return a weight as it is now, for who has kept it from before it was split."""
        return self._former.present(parameter)

    def are_parts(self, gradients: Sequence[Any]) -> List[bool]:
        """Say of each gradient whether other ranks have other parts of it, rather than the same."""
        return [is_sharded(one) and not all(each.is_replicate() for each in one.placements) for one in gradients]

    def has_part_of(self, module: nn.Module) -> bool:
        """Say whether some weights of a module are on other ranks."""
        return any(is_sharded(one) for one in module.parameters())

    def shown(self) -> ContextManager[None]:
        """Let every rank have all weights, gradients and states for a while; here DTensors see to that."""
        return nullcontext()

    def install(self) -> None:
        """Hook what a script calls, where DTensors do not see to it."""

    @property
    def headline(self) -> str:
        """Return the line that says what was decided."""
        return "scaled over %d ranks: each gets the whole of every batch, and %s (--scale %s)" % (
            self.world.size, self.what, self.name,
        )  # fmt: skip


@contextmanager
def refusing() -> Iterator[None]:
    """Say what cannot be split in the words of the command line."""
    try:
        yield
    except StrategyError as error:
        hint = error.hint
        for pattern, words in _IN_WORDS:
            hint = re.sub(pattern, words, hint)
        raise Refusal(error.message, "%s; or %s" % (hint, WITH_THE_BATCH)) from None
