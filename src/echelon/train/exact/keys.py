"""Keys for the random numbers of virtual shards: the same on all ranks, and after a restart with the same weights.

A key is computed from the bits of the weights, which `--exact` makes equal everywhere, and from the number of keys
since the weights last changed. So a run that resumes from a checkpoint, on any number of ranks, draws the same numbers.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from ..rng.generators import seed_again
from ..scaling_error import ScalingError
from ..wire.gather import whole

_MOST_TENSORS = 16
_MOST_ELEMENTS = 1024


class Trained(Protocol):
    num_steps: int

    def parameters(self) -> Sequence[torch.Tensor]:
        """Return the trained parameters."""


class Keys:
    def __init__(self, parallelism: Trained) -> None:
        self._parallelism = parallelism
        self._step = -1
        self._number = 0
        self._fingerprint = 0

    def next(self) -> int:
        if self._step != self._parallelism.num_steps:
            self._step, self._number = self._parallelism.num_steps, 0
            self._fingerprint = self._take_fingerprint()
        self._number += 1
        return zlib.crc32(b"%d %d" % (self._fingerprint, self._number))

    def place(self) -> tuple[int, int]:
        is_now = self._step == self._parallelism.num_steps
        return (self._fingerprint, self._number) if is_now else (0, 0)

    def go_on(self, place: tuple[int, int]) -> None:
        if place[1]:
            self._step = self._parallelism.num_steps
            self._fingerprint, self._number = place

    def _take_fingerprint(self) -> int:
        """Return a checksum of a few small weights, which differs from step to step."""
        chosen = sorted(self._parallelism.parameters(), key=torch.Tensor.numel)[:_MOST_TENSORS]
        parts = [whole(one.detach()).reshape(-1)[:_MOST_ELEMENTS].double().cpu() for one in chosen]
        if not parts:
            return 0
        bits = torch.cat(parts).view(torch.int64)
        return int((bits * (2 * torch.arange(bits.numel()) + 1)).sum())  # integers: their order does not matter


def check(num_shards: int, num_ranks: int) -> None:
    if not num_shards:
        return
    is_number = isinstance(num_shards, int) and not isinstance(num_shards, bool)
    if not is_number or num_shards < 2 or num_shards & (num_shards - 1):
        nearest = 1 << max(1, num_shards.bit_length() - 1) if is_number and num_shards > 0 else 8
        raise ScalingError(
            f"exact is {num_shards!r}: a binary tree adds up the virtual shards, so their number must be a power of "
            "two, at least 2",
            f"echelon.start(exact={nearest}), or exact={2 * nearest}",
        )
    if num_shards % num_ranks:
        valid = [str(1 << power) for power in range(num_shards.bit_length())]
        raise ScalingError(
            f"exact={num_shards} needs {', '.join(valid[:-1])} or {valid[-1]} ranks, but the run has {num_ranks}",
            f"echelon run -n {1 << (min(num_ranks, num_shards).bit_length() - 1)} …",
        )


def refuse_other(asked: int, begun: int) -> None:
    if asked and asked != begun:
        raise ScalingError(
            f"echelon run started with exact={begun}, but the script called echelon.start(exact={asked}) later",
            f"give the number in the first call: echelon.start(exact={asked})",
        )


Shard = tuple[int, list[object]]
"""A seed and the indices of samples."""


class Dataset:
    """A dataset that loads several virtual shards at a time."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getitems__(self, shards: Sequence[Shard]) -> list[list[object]]:
        return [self._samples(seed, indices) for seed, indices in shards]

    def _samples(self, seed: int, indices: list[object]) -> list[object]:
        seed_again(seed)
        several = getattr(self._inner, "__getitems__", None)
        return list(several(indices)) if several else [self._inner[index] for index in indices]

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)  # copy and pickle ask before the inner dataset is set
        return getattr(self._inner, name)


class Batches(list[Any]):
    """The batches of several virtual shards, not the parts of one batch."""


def batches_of_shards(collate: Callable[[list[object]], object], shards: list[list[object]]) -> Batches:
    return Batches(collate(samples) for samples in shards)
