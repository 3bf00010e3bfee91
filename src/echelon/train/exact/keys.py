"""Keys for the random numbers of virtual shards: the same on all ranks, and after a restart with the same weights.

A key is computed from the bits of the weights, which `--exact` makes equal everywhere, and from the number of keys
since the weights last changed. So a run that resumes from a checkpoint, on any number of ranks, draws the same numbers.
"""

import zlib
from typing import TYPE_CHECKING, Tuple

import torch

from ..gather import whole

if TYPE_CHECKING:
    from ..parallelism.base import Parallelism

_MOST_TENSORS = 16
_MOST_ELEMENTS = 1024


class Keys:
    """The sequence of keys of one training."""

    def __init__(self, parallelism: "Parallelism") -> None:
        self._parallelism = parallelism
        self._step = -1
        self._number = 0
        self._fingerprint = 0

    def next(self) -> int:
        """Return the next key."""
        if self._step != self._parallelism.num_steps:
            self._step, self._number = self._parallelism.num_steps, 0
            self._fingerprint = self._take_fingerprint()
        self._number += 1
        return zlib.crc32(b"%d %d" % (self._fingerprint, self._number))

    def place(self) -> Tuple[int, int]:
        """Return the fingerprint and the number of keys taken since the weights last changed."""
        is_now = self._step == self._parallelism.num_steps
        return (self._fingerprint, self._number) if is_now else (0, 0)

    def go_on(self, place: Tuple[int, int]) -> None:
        """Continue from a place of an earlier process."""
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
