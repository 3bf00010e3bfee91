"""Compute each virtual shard of a batch by itself: the same bits under every strategy that leaves layers whole.

`--exact` cuts a batch into shards. Here a shard is a part of a rank's rows, or a micro-batch of a pipeline. Its random
numbers are seeded anew at each block, so that a stage draws the numbers of one device. Its gradients are taken out when
they are complete. One tree adds up the gradients of all shards, in the same order for all ranks.
"""

import dataclasses
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from ...pytorch import internals
from ..exact import tree
from ..exact.tree import WeightGradients, own_rows
from ..function_types import Function
from ..rng.generators import Generators, seed_again
from ..wire import gather
from ..wire.gather import is_dtensor, whole
from ..wire.world import World
from . import blocks, norms
from .axes import Axes
from .strategy import Strategy, StrategyError


def fit(strategy: Strategy, num_shards: int) -> Strategy:
    """Return a strategy that computes this number of shards; refuse a strategy under which bits would differ."""
    for axis in ("tensor", "context"):
        if getattr(strategy, axis) > 1:
            raise StrategyError(
                f"exact is {num_shards}, but {axis}={getattr(strategy, axis):d} cuts the sums inside a layer, and "
                "their order then depends on the number of ranks",
                hint=f"shard={getattr(strategy, axis):d}, or echelon.start() without exact: echelon prove "
                "gives the bound",
            )
    if strategy.compile:
        raise StrategyError(
            f"exact is {num_shards}, but compiled blocks draw random numbers in another order",
            hint="compile=False",
        )
    shards_per_part = num_shards // strategy.num_data  # all are powers of two
    if strategy.accumulation not in ((shards_per_part,) if strategy.pipeline > 1 else (1, shards_per_part)):
        raise StrategyError(
            f"exact is {num_shards}, but replicate {strategy.replicate} × shard {strategy.shard} × "
            f"accumulation {strategy.accumulation} = {strategy.num_data * strategy.accumulation}",
            hint=f"accumulation={shards_per_part}",
        )
    return dataclasses.replace(strategy, accumulation=shards_per_part)


class VirtualShards:
    """The shards that this rank or its stages compute: their random numbers, and their gradients."""

    def __init__(
        self, parts: Mapping[int, nn.Module], axes: Axes, *, block_names: Sequence[str], trained: Sequence[str]
    ) -> None:
        self._axes = axes
        self._parts = parts
        self._trained = list(trained)
        self._seeds = BlockSeeds(parts, block_names)
        self._fingerprints = Fingerprints(axes, trained)
        self._weights = {
            number: WeightGradients(
                [one for one in part.parameters() if one.requires_grad],
                [part] if axes.strategy.is_fully_sharded else (),
            )
            for number, part in parts.items()
        }
        self._sums: dict[int, tree.SumByPlace] = {}
        self._squares: dict[int, _Square] = {}
        self.is_computing = False

    @contextmanager
    def computing(self, generators: Generators, parameters: Mapping[str, nn.Parameter]) -> Iterator[None]:
        """Compute shards with the random numbers of this step, and restore the generators afterwards."""
        buffers = {id(one): one._version for part in self._parts.values() for one in part.buffers()}
        with generators.kept():
            self._seeds.draw_key(self._fingerprints.take(parameters))
            self.is_computing = True
            try:
                yield
            finally:
                self.is_computing = False
        self._refuse_changed(buffers)

    def begin(self, place: int) -> None:
        self._seeds.shard = self._axes.data_place * self._axes.strategy.accumulation + place

    def set_aside(self) -> None:
        """Keep the gradients of earlier backward passes; new gradients are added to them."""
        for weights in self._weights.values():
            weights.set_aside()
        self._sums = {number: tree.SumByPlace() for number in self._parts}

    def take(self, number: int, place: int) -> None:
        self._sums[number].add(place, self._weights[number].take())

    def sum_up(self, losses: Sequence[torch.Tensor]) -> torch.Tensor:
        """Add up the gradients of all shards, and store the sums; return the sum of losses, on ranks that have any."""
        self._let_go()
        device = self._axes.world.device
        tensors: list[torch.Tensor | None] = []
        likes: list[torch.Tensor] = []
        for number, weights in self._weights.items():
            tensors += self._sums[number].local
            likes += weights.likes
        self._sums = {}
        tensors.append(_sum_of(losses))
        likes.append(torch.zeros((), device=device))
        sums = self._across(tensors, likes)
        loss = sums.pop()
        self._squares = {}
        for weights in self._weights.values():
            own, sums = sums[: len(weights.likes)], sums[len(weights.likes) :]
            squares = [None if one is None else _square(one) for one in own]
            for parameter, square, is_all in zip(weights.parameters, squares, weights.put(own), strict=False):
                if square is not None and is_all:
                    self._squares[id(parameter)] = _Square(square, parameter.grad, _version(parameter.grad))
        return likes[-1] if loss is None else loss

    def _let_go(self) -> None:
        """Free weights that stages have gathered; PyTorch frees them only when it exchanges their gradients."""
        if self._axes.strategy.is_fully_sharded and self._axes.sizes["pipeline"] > 1:
            for part in self._parts.values():
                for module in part.modules():
                    spread: object = module
                    if hasattr(spread, "reshard"):
                        spread.reshard()

    def sum_of_losses(self, losses: Sequence[torch.Tensor]) -> torch.Tensor:
        likes = [torch.zeros((), device=self._axes.world.device)]
        (total,) = self._across([_sum_of(losses)], likes)
        return likes[0] if total is None else total

    def _across(self, tensors: tree.Tensors, likes: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Add up tensors over the data axes, whose ranks are consecutive."""
        axes = self._axes
        place = World(axes.data_place, axes.strategy.num_data, axes.world.device)
        return tree.across(tensors, likes, place, first_rank=axes.world.rank - axes.data_place)

    def norm(self, parameters: Mapping[str, nn.Parameter]) -> torch.Tensor:
        axes = self._axes
        squares = torch.zeros(len(self._trained), dtype=torch.float64, device=axes.world.device)
        for place, name in enumerate(self._trained):
            gradient = parameters[name].grad if name in parameters else None
            if gradient is not None:
                squares[place] = self._square_of(parameters[name]).to(squares.device)
        if axes.sizes["pipeline"] > 1:  # for each weight one stage alone has more than 0: no order
            squares = gather.total(squares, axes.group("pipeline"))
        return squares.sum().sqrt()

    def _square_of(self, parameter: nn.Parameter) -> torch.Tensor:
        """Return the square of a gradient's norm: the known square if the gradient is unchanged, or else a new one."""
        gradient, known = parameter.grad, self._squares.get(id(parameter))
        if known is not None and known.gradient is gradient and known.version == _version(gradient):
            return known.value
        return _square(whole(gradient))

    def _refuse_changed(self, before: Mapping[int, int]) -> None:
        for part in self._parts.values():
            for name, buffer in part.named_buffers():
                if before.get(id(buffer), internals.version(buffer)) != internals.version(buffer):
                    raise StrategyError(
                        "echelon computes each shard of a batch separately, but the model changes its buffer "
                        f"{blocks.plain_name(name)} with each shard",
                        hint="use GroupNorm or LayerNorm in place of BatchNorm; or echelon.start() without exact",
                    )


class _Square(NamedTuple):
    value: torch.Tensor
    gradient: Any
    version: int
    """The version of the gradient's tensor, which shows a later change."""


def _square(gradient: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(gradient.float())
    return norm.double().square()


def _version(gradient: object) -> int:
    return internals.version(norms.local(gradient))


def _sum_of(losses: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return the sum of losses along the tree; None without losses."""
    total = tree.TreeSum()
    for loss in losses:
        total.add([loss.float().clone()])
    return total.local[0] if losses else None


_MOST_TENSORS = 16  # a fingerprint covers the smallest tensors
_MOST_ELEMENTS = 1024  # of each tensor
_MODULUS = 1 << 40


class BlockSeeds:
    """Seeds random numbers anew before and after each block, so that a stage draws the numbers of one device."""

    def __init__(self, parts: Mapping[int, nn.Module], block_names: Sequence[str]) -> None:
        self.shard = 0
        self._key = 0
        self._fingerprint, self._number = -1, 0
        for part in parts.values():
            prefix = blocks.STAGE if hasattr(part, "echelon_stage") else ""
            part.register_forward_pre_hook(self._seeding(0), prepend=True)
            for place, name in enumerate(block_names):
                block = part.get_submodule(prefix + name)  # also at the place of another stage's block
                block.register_forward_pre_hook(self._seeding(2 * place + 1))
                block.register_forward_hook(self._seeding(2 * place + 2))

    def draw_key(self, fingerprint: int) -> None:
        """Set the key of a step from the fingerprint of its weights; unchanged weights get another key each time."""
        self._number = self._number + 1 if fingerprint == self._fingerprint else 0
        self._fingerprint = fingerprint
        self._key = zlib.crc32(b"%d %d" % (fingerprint, self._number))

    def _seeding(self, place: int) -> Function:
        def seed(*_: object) -> None:
            seed_again(zlib.crc32(b"%d %d %d" % (self._key, self.shard, place)))

        return seed


class Fingerprints:
    """Computes a number that identifies the weights of a step; all ranks of all stages get the same number."""

    def __init__(self, axes: Axes, trained: Sequence[str]) -> None:
        self._axes = axes
        self._trained = list(trained)
        self._numbers: dict[str, int] = {}
        """The number of elements that this rank reads of each weight."""
        self._factors: torch.Tensor | None = None

    def take(self, parameters: Mapping[str, nn.Parameter]) -> int:
        if self._factors is None:
            self._factors = self._choose(parameters)
        values = [norms.local(parameters[name]).detach().reshape(-1)[:number] for name, number in self._numbers.items()]
        bits = torch.cat(values or [torch.zeros(0)]).double().cpu().view(torch.int64)
        value = ((bits * self._factors).sum() % _MODULUS).to(self._axes.world.device)
        return int(gather.total(value) if self._axes.world.size > 1 else value) % _MODULUS

    def _choose(self, parameters: Mapping[str, nn.Parameter]) -> torch.Tensor:
        """Choose elements that no other rank reads; return a factor for each, by its place among all elements."""
        axes, places = self._axes, [torch.zeros(0, dtype=torch.int64)]
        for name in self._smallest(parameters):
            if name not in parameters or axes.place("replicate"):
                continue
            if is_dtensor(parameters[name]) or not axes.place("shard"):  # else another rank of this axis has it too
                first = _first_element(parameters[name])
                number = min(max(_MOST_ELEMENTS - first, 0), norms.local(parameters[name]).numel())
                self._numbers[name] = number
                places.append(torch.arange(first, first + number) + self._trained.index(name) * _MOST_ELEMENTS)
        return 2 * torch.cat(places) + 1

    def _smallest(self, parameters: Mapping[str, nn.Parameter]) -> list[str]:
        """Return the names of the smallest weights of all stages, the same on all ranks."""
        every = self._axes.of_all_stages({name: one.numel() for name, one in parameters.items()})
        sizes = {name: size for one in every for name, size in one.items()}
        known = [name for name in self._trained if name in sizes]
        return sorted(known, key=lambda name: sizes[name])[:_MOST_TENSORS]


def _first_element(parameter: nn.Parameter) -> int:
    if not is_dtensor(parameter):
        return 0
    return own_rows(parameter).start * (parameter.numel() // max(parameter.size(0), 1))  # type: ignore[no-any-return]
