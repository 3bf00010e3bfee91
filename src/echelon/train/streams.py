"""Two streams of random numbers: one that is the same on all ranks, for the order of the data, and each rank's own.

What a script draws outside of its training steps (initial weights, the order of an epoch) must be equal on all ranks;
what it draws inside (dropout, noise) must not be, for each rank has other samples.
"""

import random
import sys
from contextlib import contextmanager
from typing import Any, Iterator, List, Optional

import torch

_RANK_STEP = 1_000_003


class Streams:
    """Switches the generators of torch, numpy and Python between the common stream and the rank's own."""

    def __init__(self, rank: int, seed: int) -> None:
        self._rank = rank
        self._is_own = False
        self._other: Optional[List[Any]] = None
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
        was_own = self._is_own
        self.common()
        try:
            yield
        finally:
            if was_own:
                self.own()

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
    if numpy_state is not None:
        sys.modules["numpy"].random.set_state(numpy_state)
