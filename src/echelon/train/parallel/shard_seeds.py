"""The random numbers of virtual shards: they follow from the weights, the shard and the block, and nothing else."""

import zlib
from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch
from torch import nn

from .. import all_gather, messages
from ..exact.weights import own_rows
from ..gather import is_dtensor
from ..rng.generators import seed_again
from . import blocks, norms
from .axes import Axes

_MOST_TENSORS = 16  # of which a fingerprint is taken, the smallest
_MOST_ELEMENTS = 1024  # of each
_MODULUS = 1 << 40


class Seeds:
    """Let random numbers begin anew wherever a stage could begin: so they are those of one device there."""

    def __init__(self, parts: Mapping[int, nn.Module], block_names: Sequence[str]) -> None:
        self.shard = 0
        self._key = 0
        self._fingerprint, self._number = -1, 0
        for part in parts.values():
            prefix = blocks.STAGE if hasattr(part, "echelon_stage") else ""
            part.register_forward_pre_hook(self._seeding(0), prepend=True)
            for place, name in enumerate(block_names):
                block = part.get_submodule(prefix + name)  # where a block of another stage would be, too
                block.register_forward_pre_hook(self._seeding(2 * place + 1))
                block.register_forward_hook(self._seeding(2 * place + 2))

    def draw_key(self, fingerprint: int) -> None:
        """Draw the key of a step from weights; each time another, also where they stay as they are."""
        self._number = self._number + 1 if fingerprint == self._fingerprint else 0
        self._fingerprint = fingerprint
        self._key = zlib.crc32(b"%d %d" % (fingerprint, self._number))

    def _seeding(self, place: int) -> Any:
        def seed(*_: Any) -> None:
            seed_again(zlib.crc32(b"%d %d %d" % (self._key, self.shard, place)))

        return seed


class Fingerprints:
    """Tell the weights of one step from those of another; all ranks of all stages come to the same number."""

    def __init__(self, axes: Axes, trained: Sequence[str]) -> None:
        self._axes = axes
        self._trained = list(trained)
        self._numbers: Dict[str, int] = {}
        """How many elements of a weight this rank tells the bits of."""
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
        """Choose elements that no other rank tells of; return a factor for each, by its place among all."""
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
    """Say whether another rank of the shard axis has the same."""
    return not is_dtensor(parameter) and axes.place("shard") > 0


def _first_element(parameter: Any) -> int:
    """Return which element of a weight is the first that this rank keeps."""
    if not is_dtensor(parameter):
        return 0
    return own_rows(parameter).start * (parameter.numel() // max(parameter.size(0), 1))  # type: ignore[no-any-return]
