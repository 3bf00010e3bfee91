"""Which samples the newest batches of the loaders have, and in which pass: the facts of a step whose loss is bad."""

import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ...pytorch import internals
from ..wire import device as devices

MOST_AHEAD = 8
"""A loop that takes more batches before its first pass backward does not show which of them a loss is of."""


class Origin(NamedTuple):
    """Where the loss of a pass backward comes from."""

    num_pass: int
    """The number of the pass over the loader, from 1 on; 0: unknown."""
    batches: Sequence[object]
    """The indices of the newest batch, and of others that the loop has taken ahead; empty: unknown."""
    tensors: "tuple[weakref.ref[torch.Tensor], ...]"
    """The tensors of the newest batch, as long as the script holds them."""

    @property
    def samples(self) -> list[int]:
        """The indices of all samples; empty: unknown."""
        indices = list(_flat(self.batches))
        samples = [index for index in indices if type(index) is int]
        return samples if len(samples) == len(indices) else []

    def not_finite(self) -> int | None:
        """Return the first sample of the newest batch with a value that is not finite; None if none is seen.

        A tensor of a device is not looked into: this would wait for the device.
        """
        samples = self.samples
        for tensor in (held() for held in self.tensors if samples):
            if tensor is None or not tensor.is_floating_point() or devices.is_accelerator(tensor.device):
                continue
            if tensor.is_nested or tensor.layout != torch.strided:
                continue
            if tensor.dim() and tensor.size(0) == len(samples):
                rows = tensor.detach().reshape(tensor.size(0), -1).isfinite().all(1).logical_not().nonzero()
                if len(rows):
                    return samples[int(rows[0])]
        return None


UNKNOWN = Origin(0, (), ())


class _Pass:
    """One pass over a loader."""

    def __init__(self, number: int, of: object) -> None:
        self.number = number
        self.of = of
        self.drawn: deque[object] = deque()
        """The indices of batches that the loop has not got yet."""
        self.newest: list[object] = []
        self.num_ahead = 0
        """How many batches the loop took before its first pass backward."""
        self.is_trained = False


class BatchOrigins:
    """The newest batches of all loaders."""

    def __init__(self) -> None:
        self._passes: weakref.WeakKeyDictionary[object, _Pass] = weakref.WeakKeyDictionary()
        self._numbers: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._since: dict[int, _Pass] = {}
        """The passes that gave a batch since the last pass backward."""
        self._batch: Any = None
        self._is_used = True
        self.is_continued = False
        """Whether another process has made the passes before, so that their numbers are unknown."""

    def drew(self, iterator: object, indices: object) -> None:
        """Note the indices of a batch that a loader is about to load."""
        one = self._passes.get(iterator)
        indices_of_pass = getattr(iterator, internals.INDICES)
        if one is None or one.of is not indices_of_pass:
            one = self._passes[iterator] = _Pass(self._number(iterator), indices_of_pass)
        # workers of a loader without order give batches as they are done, so nobody knows which
        one.drawn.append(indices if getattr(iterator, internals.IN_ORDER, True) else None)

    def gave(self, iterator: object, batch: object) -> None:
        """Note a batch that the loop gets."""
        if self._is_used:
            self._since, self._is_used = {}, False
        one = self._passes.get(iterator)
        if one is None:
            return
        one.newest = [*one.newest[-MOST_AHEAD:], one.drawn.popleft() if one.drawn else None]
        one.num_ahead += not one.is_trained
        self._since[id(one)] = one
        self._batch = tuple(weakref.ref(part) for part in _parts(batch) if type(part) is torch.Tensor)

    def origin(self) -> Origin:
        """Return where a loss that goes backward now comes from; a second loss of a batch comes from the same one."""
        self._is_used = True
        for one in self._since.values():
            one.is_trained = True
        if len(self._since) != 1:
            return UNKNOWN  # two loaders, or an evaluation between
        number = 0 if self.is_continued else one.number
        if not 0 < one.num_ahead <= MOST_AHEAD:
            return Origin(number, (), ())
        if one.num_ahead == 1:
            return Origin(number, one.newest[-1:], self._batch)
        return Origin(number, one.newest[-one.num_ahead :], ())

    def _number(self, iterator: object) -> int:
        sampler = getattr(iterator, internals.INDEX_SAMPLER)
        try:
            number = self._numbers[sampler] = self._numbers.get(sampler, 0) + 1
        except TypeError:  # a list of batches, to which nothing can refer weakly
            return 0
        return number


def _parts(batch: object) -> Iterable[object]:
    """Return the entries of a batch; what stands deeper is not looked at."""
    if isinstance(batch, dict):
        return batch.values()
    return batch if isinstance(batch, (list, tuple)) else (batch,)


def _flat(indices: object) -> Iterator[object]:
    """Yield the indices of a batch; with --exact, those of each shard stand behind its seed."""
    if isinstance(indices, tuple) and len(indices) == 2 and isinstance(indices[1], list):
        yield from _flat(indices[1])
    elif isinstance(indices, (list, tuple)):
        for entry in indices:
            yield from _flat(entry)
    else:
        yield int(indices) if isinstance(indices, torch.Tensor) and indices.numel() == 1 else indices
