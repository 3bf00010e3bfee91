"""The place of a training in its data: the epoch, and the batches of this epoch that are done."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import torch
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
        """Of all ranks among which a sampler divides them; 0: the loader does not say."""

    def facts(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batches": self.batches, "samples_per_batch": self.samples_per_batch}

    def go_on(self, facts: dict[str, int]) -> None:
        self.epoch, self.batches = facts["epoch"], facts["batches"]
        self.samples_per_batch = facts["samples_per_batch"]

    def fit(self, loader: object, *, was_ranks: int, num_ranks: int) -> None:
        """Count the batches that are done as this loader counts them; refuse a place between two of its batches."""
        before, now = self.samples_per_batch, samples_per_batch(loader)
        self.samples_per_batch = now
        is_sampler = isinstance(getattr(loader, "sampler", None), DistributedSampler)
        is_known = was_ranks == num_ranks or is_sampler or isinstance(loader, (ShardedLoader, OwnRows))
        if not self.batches or (is_known and before == now):
            return
        done = self.batches * before
        if not (is_known and before and now) or done % now:
            raise ScalingError(
                f"the checkpoint is after {self.batches} batches of {_samples(before)} on {was_ranks} ranks, and the "
                f"loader's batches of {_samples(now)} on {num_ranks} ranks have no such place",
                f"start {was_ranks} ranks with the batch size of before; or use a DistributedSampler, and batches of "
                f"which {done} samples are a multiple",
            )
        self.batches = done // now


def _samples(number: int) -> str:
    return f"{number} samples" if number else "an unknown size"


def loader_of(loader: object) -> Any:
    return loader.inner if isinstance(loader, (ShardedLoader, OwnRows)) else loader


def keeps_workers(loader: object) -> bool:
    """Say whether workers stay for all epochs: only in the first one such a loader draws a seed for them."""
    return bool(getattr(loader_of(loader), "persistent_workers", False))


@contextmanager
def _without_seed(loader: object, *, is_on: bool) -> Iterator[None]:
    """Let a loader that begins draw the seed of its workers elsewhere: in this training it was drawn before."""
    target = loader.own if isinstance(loader, OwnRows) else loader
    if not is_on or not isinstance(target, DataLoader):
        yield
        return
    before, target.__dict__["generator"] = target.generator, torch.Generator()
    try:
        yield
    finally:
        target.__dict__["generator"] = before


def samples_per_batch(loader: object) -> int:
    """Return the samples of a batch of all ranks among which a DistributedSampler divides them; 0: unknown."""
    inner = loader_of(loader)
    size: int | None = getattr(inner, "batch_size", None)
    sampler = getattr(inner, "sampler", None)
    return (size or 0) * (sampler.num_replicas if isinstance(sampler, DistributedSampler) else 1)


class Behind:
    """The batches of a loader behind the first ones, which are not loaded where samples have an index.

    `batches` is an iterator over them. A shuffle is drawn when `skip` is called, or with the first batch. The first
    `num_passed_over` workers load a sample of the first batch before it.
    """

    def __init__(self, loader: Any, number: int, *, had_workers: bool, num_passed_over: int = 0) -> None:
        self._number, self._had_workers, self._num_passed_over = number, had_workers, num_passed_over
        self._indices: Any = None
        with _without_seed(loader, is_on=had_workers):
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

    def _shortened(self, loader: object) -> Any:
        inner = loader_of(loader)
        indices = getattr(inner, "batch_sampler", None)
        if not isinstance(inner, DataLoader) or indices is None or isinstance(inner.dataset, IterableDataset):
            return self._rest_of(loader)
        elsewhere = {"generator": torch.Generator()} if self._had_workers else {}
        if isinstance(loader, (ShardedLoader, OwnRows)):
            return loader.behind(self._rest_of, elsewhere)
        return twin_of(loader, batch_sampler=self._rest_of(indices), **elsewhere)

    def _rest_of(self, values: object) -> "_Rest":
        return _Rest(values, self)

    def iterate(self, values: Any) -> Iterator[Any]:
        """Return the rest of some values; they are asked for as late as the loader would ask."""
        self._indices = iter(values)
        return self._rest()

    def _rest(self) -> Iterator[Any]:
        self._leave_out()
        if self._num_passed_over:
            first = list(next(self._indices, ()))
            yield from [first[:1]] * self._num_passed_over if first else ()
            yield from [first] if first else ()
        yield from self._indices


class _Rest:
    def __init__(self, values: Any, behind: Behind) -> None:
        self._values, self._behind = values, behind

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return self._behind.iterate(self._values)
