"""The places where the graphs of virtual shards, each computed by itself, meet tensors that all shards share.

A *cut* is a whole tensor that shards use, such as a learned weight of a loss. Each shard gets its own leaf, and the sum
of the leaves' gradients is passed on to the whole. A *join* is a whole tensor that is made of shards, such as the
similarities of all samples. Its gradient is passed on to the rows of each shard. A backward pass alternates between the
wholes and the shards, one shard at a time. So its bits do not depend on the processes that compute the shards.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ..scaling_error import ScalingError
from ..wire.gather import whole as full
from . import tree


class _Cut(NamedTuple):
    whole: torch.Tensor
    leaves: list[torch.Tensor]
    """One leaf for each shard of this process."""
    step: int


class _CutJoin(NamedTuple):
    whole: torch.Tensor
    parts: Sequence[torch.Tensor]
    """One part for each shard of this process."""
    gradient_of: Callable[[torch.Tensor, int], torch.Tensor]
    """A function that returns the gradient of one part; its arguments are the whole's gradient and the part's place."""
    step: int


class GraphCuts:
    """The cuts and joins that backward passes may have to go through."""

    def __init__(self) -> None:
        self._cuts: dict[int, _Cut] = {}
        self._joins: list[_CutJoin] = []
        self._made: dict[int, int] = {}
        self._step = 0

    def cut(self, whole: torch.Tensor, shard: int) -> torch.Tensor:
        """Return one shard's leaf in place of a whole tensor; all shards cut their tensors in the same order."""
        number = self._made.get(shard, 0)
        self._made[shard] = number + 1
        if number not in self._cuts:
            gathered = full(whole)  # for weights that are sharded
            self._cuts[number] = _Cut(gathered, [], self._step)
        leaf = self._cuts[number].whole.detach().clone().requires_grad_()
        self._cuts[number].leaves.append(leaf)
        return leaf

    def join(
        self,
        value: torch.Tensor,
        parts: Sequence[torch.Tensor],
        gradient_of: Callable[[torch.Tensor, int], torch.Tensor],
    ) -> torch.Tensor:
        """Return a whole tensor whose gradient `backward` passes on to its parts."""
        leaf = value.requires_grad_()
        self._joins.append(_CutJoin(leaf, parts, gradient_of, self._step))
        return leaf.clone()  # a copy, which the script may change in place

    def at_step(self) -> None:
        self._cuts = {number: one for number, one in self._cuts.items() if one.step == self._step}
        self._joins = [one for one in self._joins if one.step == self._step]
        self._step += 1

    def backward(self, loss: Any, run: Callable[[torch.Tensor], None], weights: Any, world: object) -> Any:
        """Compute all gradients of a loss, which is a whole tensor or a list of the shards' parts; return its value."""
        if isinstance(loss, list):
            value = self._of_shards(lambda place: run(loss[place]), weights, world, [one.detach() for one in loss])
        else:
            weights.pass_whole(lambda: run(loss))
            value = loss.detach()
        while self._go_on(weights, world):
            pass
        return value

    def _go_on(self, weights: object, world: object) -> bool:
        """Pass the gradients of joins on to their shards; return whether there were any."""
        wanted = [(one, one.whole.grad) for one in self._joins if one.whole.grad is not None]
        if not wanted:
            return False
        self._joins = [one for one in self._joins if one.whole.grad is None]

        def run(place: int) -> None:
            gradients = [one.gradient_of(gradient, place) for one, gradient in wanted]
            try:
                torch.autograd.backward([one.parts[place] for one, _ in wanted], gradients)
            except RuntimeError as error:
                if "second time" not in str(error):
                    raise
                raise _second() from None

        self._of_shards(run, weights, world, None)
        for join, _ in wanted:
            _take_no_more(join.whole)
        return True

    def _of_shards(self, run: Callable[[int], None], weights: Any, world: Any, values: Any) -> object:
        """Run one backward pass of each shard, sum the gradients along the tree, and pass on those of cut wholes."""
        cuts = dict(self._cuts)
        likes = [*weights.likes, *(one.whole.detach() for one in cuts.values()), *(values[:1] if values else ())]
        total = tree.TreeSum()
        weights.set_aside()
        for place in range(world.hosted):
            run(place)
            of_cuts = [one.leaves[place].grad for one in cuts.values()]
            total.add([*weights.take(), *of_cuts, *([values[place].clone()] if values else ())])
        sums = tree.across(total.local, likes, world)
        weights.put(sums)
        self._into_cuts(cuts, sums[len(weights.likes) :], weights)
        return sums[-1] if values else None

    def _into_cuts(self, cuts: dict[int, _Cut], gradients: Sequence[Any], weights: Any) -> None:
        reached = {number: gradient for number, gradient in zip(cuts, gradients, strict=False) if gradient is not None}
        for number in reached:
            del self._cuts[number]
            for leaf in cuts[number].leaves:
                _take_no_more(leaf)
        if reached:
            wholes = [cuts[number].whole for number in reached]
            weights.pass_whole(lambda: torch.autograd.backward(wholes, list(reached.values())))


def _take_no_more(leaf: Any) -> None:
    leaf.register_hook(_refuse_second)


def _refuse_second(_: torch.Tensor) -> None:
    raise _second()


def _second() -> ScalingError:
    return ScalingError(
        "with --exact, gradients cannot pass from functions of the whole batch to functions of single samples "
        "and back again",
        "do these steps in one call of a model or of a loss function, or run without --exact",
    )
