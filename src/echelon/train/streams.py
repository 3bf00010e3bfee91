"""Two streams of random numbers: one that is the same on all ranks, for the order of the data, and each rank's own.

What a script draws for whole batches (initial weights, the order of an epoch, noise) must be equal on all ranks; what
is drawn inside of a model (dropout), or when samples are loaded, must not be, for each rank has other samples.
"""

import random
import sys
from contextlib import contextmanager
from typing import Any, Iterator, List, Optional

import torch
import torch.distributed as dist

from .world import World

_RANK_STEP = 1_000_003


class Streams:
    """Switches the generators of torch, numpy and Python between the common stream and the rank's own."""

    def __init__(self, rank: int, seed: Optional[int]) -> None:
        self._rank = rank
        self.is_watched = False
        """Whether to notice what is drawn from the rank's own stream."""
        self.was_drawn = False
        self._seen: Optional[List[Any]] = None
        self._is_own = False
        self._other: Optional[List[Any]] = None
        if seed is not None:
            seed_all(seed)

    def own(self) -> None:
        """Draw from the rank's own stream from now on; it begins where the common one is when it is first needed."""
        if not self._is_own:
            if self._other is None:
                common = _state()
                seed_all((torch.initial_seed() + (self._rank + 1) * _RANK_STEP) % (1 << 31))
                self._other = common
            else:
                self._swap()
            self._is_own = True

    def common(self) -> None:
        """Draw from the common stream from now on."""
        if self._is_own:
            self._swap()
            self._is_own = False

    @contextmanager
    def in_common(self) -> Iterator[None]:
        """Draw from the common stream for a while."""
        was_own, was_watching = self._is_own, self._seen is not None
        self._look()
        self.common()
        try:
            yield
        finally:
            if was_own:
                self.own()
            if was_watching:
                self._seen = _state()

    @contextmanager
    def in_own(self) -> Iterator[None]:
        """Draw from the rank's own stream for a while."""
        if self._is_own:
            yield
            return
        if self.is_watched:
            self._seen = _state()
            yield
            self._look()
            return
        self.own()
        try:
            yield
        finally:
            self.common()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Leave all generators as they were before."""
        state = _state()
        try:
            yield
        finally:
            _set_state(state)

    def follow(self, world: World) -> None:
        """Go on with rank 0's random numbers, on all ranks."""
        state: List[Any] = [_state()]
        dist.broadcast_object_list(state, 0)
        if world.rank:
            cpu, _, python, numpy_state = state[0]
            cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
            _set_state([cpu, cuda, python, numpy_state])

    def _look(self) -> None:
        """Notice what was drawn since the generators were last seen."""
        if self._seen is not None:
            self.was_drawn = self.was_drawn or not _is_same(self._seen, _state())
            self._seen = None

    def _swap(self) -> None:
        other, self._other = self._other, _state()
        if other is not None:
            _set_state(other)


def seed_all(seed: int) -> None:
    """Seed every generator that a script may use."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))


def _state() -> List[Any]:
    numpy = sys.modules.get("numpy")
    return [
        torch.get_rng_state(),
        torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,  # type: ignore[no-untyped-call]
        random.getstate(),
        numpy.random.get_state() if numpy is not None else None,
    ]


def _set_state(state: List[Any]) -> None:
    cpu, cuda, python, numpy_state = state
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda)
    random.setstate(python)
    if numpy_state is not None and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(numpy_state)


def _is_same(one: List[Any], other: List[Any]) -> bool:
    return torch.equal(one[0], other[0]) and one[2] == other[2] and str(one[3]) == str(other[3])
