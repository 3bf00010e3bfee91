"""Seed the random numbers of virtual shards: the seed depends only on the weights, the shard and the block."""

import zlib
from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch
from torch import nn

from .. import messages
from ..cpu import all_gather
from ..exact.weights import own_rows
from ..gather import is_dtensor
from ..rng.generators import seed_again
from . import blocks, norms
from .axes import Axes

_MOST_TENSORS = 16  # a fingerprint covers the smallest tensors
_MOST_ELEMENTS = 1024  # of each tensor
_MODULUS = 1 << 40


class Seeds:
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

    def _seeding(self, place: int) -> Any:
        def seed(*_: Any) -> None:
            seed_again(zlib.crc32(b"%d %d %d" % (self._key, self.shard, place)))

        return seed


class Fingerprints:
    """Computes a number that identifies the weights of a step; all ranks of all stages get the same number."""

    def __init__(self, axes: Axes, trained: Sequence[str]) -> None:
        self._axes = axes
        self._trained = list(trained)
        self._numbers: Dict[str, int] = {}
        """The number of elements that this rank reads of each weight."""
        self._factors: Optional[torch.Tensor] = None

    def take(self, parameters: Mapping[str, nn.Parameter]) -> int:
        """Return the number, made of the bits of a few small tensors."""
        if self._factors is None:
            self._factors = self._choose(parameters)
        values = [norms.local(parameters[name]).detach().reshape(-1)[:number] for name, number in self._numbers.items()]
        bits = torch.cat(values or [torch.zeros(0)]).double().cpu().view(torch.int64)
        value = ((bits * self._factors).sum() % _MODULUS).to(self._axes.world.device)
        return int(all_gather.total(value) if self._axes.world.size > 1 else value) % _MODULUS

    def _choose(self, parameters: Mapping[str, nn.Parameter]) -> torch.Tensor:
        """Choose elements that no other rank reads; return a factor for each, by its place among all elements."""
        axes, places = self._axes, [torch.zeros(0, dtype=torch.int64)]
        for name in self._smallest(parameters):
            if name in parameters and not axes.place("replicate") and not _is_copy(parameters[name], axes):
                first = _first_element(parameters[name])
                number = min(max(_MOST_ELEMENTS - first, 0), norms.local(parameters[name]).numel())
                self._numbers[name] = number
                places.append(torch.arange(first, first + number) + self._trained.index(name) * _MOST_ELEMENTS)
        return 2 * torch.cat(places) + 1

    def _smallest(self, parameters: Mapping[str, nn.Parameter]) -> List[str]:
        """Return the names of the smallest weights of all stages, the same on all ranks."""
        mine = {name: one.numel() for name, one in parameters.items()}
        every: List[Any] = [mine]
        if self._axes.sizes["pipeline"] > 1:
            every = messages.gather(mine)
        sizes = {name: size for one in every for name, size in one.items()}
        known = [name for name in self._trained if name in sizes]
        return sorted(known, key=lambda name: sizes[name])[:_MOST_TENSORS]


def _is_copy(parameter: nn.Parameter, axes: Axes) -> bool:
    """Say whether another rank of the shard axis holds the same weight."""
    return not is_dtensor(parameter) and axes.place("shard") > 0


def _first_element(parameter: Any) -> int:
    """Return the index of the first element of a weight that this rank holds."""
    if not is_dtensor(parameter):
        return 0
    return own_rows(parameter).start * (parameter.numel() // max(parameter.size(0), 1))  # type: ignore[no-any-return]
