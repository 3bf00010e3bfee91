"""Two streams of random numbers: a common stream that is the same on all ranks, and each rank's own stream.

Numbers for whole batches (initial weights, the order of an epoch, noise) must be equal on all ranks. Numbers inside of
a model (dropout), or for the loading of samples, must differ between ranks, because each rank has other samples.
"""

import random
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from ...pytorch import internals
from ..scaling_error import ScalingError
from ..wire import device as devices
from ..wire import messages, plain_data
from ..wire.world import World
from . import states as random_states

_RANK_STEP = 1_000_003
_SHARD_STEP = 2_654_435_761


class Generators:
    """Switches the generators of torch, numpy and Python between the common stream and the rank's own."""

    def __init__(self, rank: int, seed: int | None, *, are_keyed: bool = False) -> None:
        self._rank = rank
        self._is_keyed = are_keyed
        self.is_single = False
        """Whether this is the only rank, which draws all numbers from the common stream, as one device does."""
        self.is_watched = False
        """Whether to notice draws from the rank's own stream."""
        self.was_drawn = False
        self._seen: list[object] | None = None
        self._is_own = False
        self._other: list[object] | None = None
        if seed is not None:
            seed_all(seed)

    @property
    def is_own(self) -> bool:
        return self._is_own

    def note_drawn(self) -> None:
        """Notice, as one device, a draw of another generator that would belong to a rank's own stream."""
        self.was_drawn = self.was_drawn or (self.is_watched and self._seen is not None)

    def continue_as_one_device(self) -> None:
        """Go on as one device, and notice the draws for which ranks would use their own streams."""
        self._is_keyed = False
        self.is_watched = True

    def own(self) -> None:
        """Draw from the rank's own stream from now on; its first use seeds it from the common seed and the rank."""
        if not self._is_own:
            if self._other is None:
                common = _state()
                seed_all((torch.initial_seed() + (self._rank + 1) * _RANK_STEP) % (1 << 31))
                self._other = common
            else:
                self._swap()
            self._is_own = True

    def common(self) -> None:
        if self._is_own:
            self._swap()
            self._is_own = False

    @contextmanager
    def in_common(self) -> Iterator[None]:
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
        if self._is_own or self._is_keyed or self.is_single:
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
    def of_shards(self, module: nn.Module, draw_key: Callable[[], int]) -> Iterator[Callable[[int], None]]:
        """Yield a function that seeds the random numbers of a virtual shard; they depend on a key and the shard alone.

        Refuse a model that changes a buffer with each shard.
        """
        if not self._is_keyed:
            yield lambda _: None
            return
        key = draw_key()
        buffers = {name: internals.version(one) for name, one in module.named_buffers()}
        with self.kept():
            yield lambda shard: seed_again(key_of(key, shard))
        for name, buffer in module.named_buffers():
            if internals.version(buffer) != buffers.get(name, internals.version(buffer)):
                raise ScalingError(
                    f"with --exact echelon computes each shard of a batch separately, but {type(module).__name__} "
                    f"changes its buffer {name} with each shard",
                    "use GroupNorm or LayerNorm in place of BatchNorm, or run without --exact",
                )

    def kept(self) -> AbstractContextManager[Callable[[], bool]]:
        """Restore all generators at the end; the context's value is a function that says whether a number was drawn."""
        return kept()

    def follow(self, world: World) -> None:
        """Set the generators of all ranks to the states of rank 0."""
        told = messages.broadcast(portable_state(), 0)
        if world.rank:
            put_portable_state(told)

    def own_state(self) -> list[object] | None:
        """Return the states of the rank's own stream in a portable form; None if nothing was drawn from it."""
        if self._other is None or self._is_own:
            return None
        with self.in_own():
            return portable_state()

    def put_own_state(self, state: list[object]) -> None:
        """Continue the rank's own stream from the state of an earlier process; one device has no such stream."""
        if self.is_watched:
            return
        with self.in_own():
            put_portable_state(state)

    def digest(self) -> int:
        """Return a checksum of the states of all generators; ranks compare it."""
        states = [b"" if one is None else one.cpu().numpy().tobytes() for one in _torch_state()]
        return zlib.crc32(b"".join(states), random_states.digest())

    def _look(self) -> None:
        """Notice draws since the states were last remembered."""
        if self._seen is not None:
            self.was_drawn = self.was_drawn or not _is_same(self._seen, _state())
            self._seen = None

    def _swap(self) -> None:
        state, self._other = self._other, _state()
        if state is not None:
            _set_state(state)


def key_of(key: int, place: int) -> int:
    """Return the seed of one shard among those that share a key."""
    return (key + (place + 1) * _SHARD_STEP) % (1 << 31)


def seed_all(seed: int) -> None:
    """Seed every generator that a script may use, now or later."""
    torch.manual_seed(seed)
    seed_again(seed)


def seed_again(seed: int) -> None:
    """Seed the generators that are in use; torch.manual_seed would spend 3 ms on tracebacks for unused devices."""
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    devices.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))


@contextmanager
def kept() -> Iterator[Callable[[], bool]]:
    """Restore every generator of this process and of its device at the end.

    The context's value is a function that says whether a number was drawn. torch.random.fork_rng() would initialise all
    devices that a rank can see.
    """
    state = _state()
    try:
        yield lambda: not _is_same(state, _state())
    finally:
        _set_state(state)


def _state() -> list[object]:
    return [_torch_state(), random_states.keep()]


def _torch_state() -> list[Any]:
    return [torch.get_rng_state(), devices.random_state()]


def _set_state(state: list[Any]) -> None:
    (cpu, of_device), library_states = state
    torch.set_rng_state(cpu)
    devices.set_random_state(of_device)
    random_states.put(library_states)


def _is_same(state: list[Any], other_state: list[Any]) -> bool:
    (cpu, cuda), (other_cpu, other_cuda) = state[0], other_state[0]
    is_cuda_same = cuda is None or other_cuda is None or torch.equal(cuda, other_cuda)
    return is_cuda_same and torch.equal(cpu, other_cpu) and random_states.is_same(state[1], other_state[1])


def portable_state() -> list[object]:
    """Return the states of all generators in a form that another process can take."""
    return [*_torch_state(), random_states.portable()]


def put_portable_state(states: list[Any]) -> None:
    """Set states that `portable_state` returned."""
    torch.set_rng_state(states[0])
    devices.set_random_state(states[1])
    random_states.put_portable(states[2])


def as_tensor(generators: Generators) -> torch.Tensor:
    """Return the states as bytes, shape (number of bytes,); empty if this rank drew none."""
    state = generators.own_state()
    content = b"" if state is None else plain_data.encode(state)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def put(generators: Generators, states: torch.Tensor) -> None:
    """Let this rank go on with the states of a checkpoint; an empty tensor changes nothing."""
    if states.numel():
        generators.put_own_state(plain_data.decode(bytes(states.tolist())))
