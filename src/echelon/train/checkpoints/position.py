"""The place of a training in its data: the epoch, and the batches of this epoch that are done."""

from itertools import chain, islice
from typing import Any, Dict, Iterator, Optional

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from ..batches import twin_of
from ..loops import ShardedLoader
from ..scaling_error import ScalingError
from ..strategies.batches import OwnRows


class Position:
    """An epoch, and a number of batches."""

    def __init__(self) -> None:
        self.epoch = 0
        self.batches = 0
        self.samples_per_batch = 0
        """Of all ranks, where a DistributedSampler divides them; 0: a batch belongs to no number of ranks."""

    def facts(self) -> Dict[str, int]:
        """Return the position as JSON."""
        return {"epoch": self.epoch, "batches": self.batches, "samples_per_batch": self.samples_per_batch}

    def go_on(self, facts: Dict[str, int]) -> None:
        """Take the position of a checkpoint."""
        self.epoch, self.batches = facts["epoch"], facts["batches"]
        self.samples_per_batch = facts["samples_per_batch"]

    def fit(self, loader: Any, *, was_ranks: int, num_ranks: int) -> None:
        """Count the batches that are done as this loader counts them; refuse a place between two of its batches."""
        samples = samples_per_batch(loader, num_ranks)
        done = self.batches * self.samples_per_batch
        if self.batches and was_ranks != num_ranks and not is_of_one_device(loader):
            if not (samples and self.samples_per_batch) or done % samples:
                raise ScalingError(
                    "the checkpoint is after %d batches of %d ranks, and the batches of %d ranks have no such place"
                    % (self.batches, was_ranks, num_ranks),
                    "start %d ranks; or use a DistributedSampler, and batches of which %d samples are a multiple"
                    % (was_ranks, done),
                )
            self.batches = done // samples
        self.samples_per_batch = samples


def is_of_one_device(loader: Any) -> bool:
    """Say whether each batch is that of one device, on any number of ranks."""
    return isinstance(loader, (ShardedLoader, OwnRows))


def samples_per_batch(loader: Any, num_ranks: int) -> int:
    """Return the samples of a batch of all ranks, if a DistributedSampler divides them; else 0."""
    is_divided = isinstance(getattr(loader, "sampler", None), DistributedSampler)
    size: Optional[int] = getattr(loader, "batch_size", None)
    return size * num_ranks if is_divided and size else 0


class Behind:
    """The batches of a loader behind the first ones, which are not loaded where samples have an index.

    `batches` is an iterator over them. A shuffle is drawn when `skip` is called, or with the first batch.
    """

    def __init__(self, loader: Any, number: int) -> None:
        self._number = number
        self._indices: Any = None
        self.batches: Iterator[Any] = iter(self._shortened(loader) if number else loader)

    def skip(self) -> None:
        """Leave out the batches that are done; a loader that asks late for its indices gives its first batch, too."""
        if self._number and self._indices is None:
            self.batches = chain(list(islice(self.batches, 1)), self.batches)
            return
        self._leave_out()

    def _leave_out(self) -> None:
        for _ in range(self._number):
            next(self._indices, None)
        self._number = 0

    def _shortened(self, loader: Any) -> Any:
        if isinstance(loader, (ShardedLoader, OwnRows)):
            return loader.behind(self._rest_of)
        indices = getattr(loader, "batch_sampler", None)
        if isinstance(loader, DataLoader) and indices is not None and not isinstance(loader.dataset, IterableDataset):
            return twin_of(loader, batch_sampler=self._rest_of(indices))
        return self._rest_of(loader)

    def _rest_of(self, values: Any) -> "_Rest":
        return _Rest(values, self)

    def of(self, values: Any) -> Iterator[Any]:
        """Return the rest of some values; they are asked for as late as the loader would ask."""
        self._indices = iter(values)
        return self._rest()

    def _rest(self) -> Iterator[Any]:
        self._leave_out()
        yield from self._indices


class _Rest:
    def __init__(self, values: Any, behind: Behind) -> None:
        self._values, self._behind = values, behind

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return self._behind.of(self._values)
