"""Iterate over a DataLoader with this rank's share of every batch, in the global order of one device."""

import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from . import batches, collating, events
from .exact import keys
from .global_tensors import lists
from .global_tensors.numbered import Numbering
from .global_tensors.pieces import shards_of
from .recording.record import in_other_order
from .rng.generators import key_of, seed_all
from .scaling_error import ScalingError, as_of_library
from .training import Training
from .wire.world import World

_RANK_STEP = 7_368_787
iterate = DataLoader.__iter__  # the original, before it is hooked


def may_have_state(sampler: Any) -> bool:
    """Say whether a batch sampler may give other batches in each pass for another reason than random numbers."""
    data = torch.utils.data
    is_plain = type(sampler) is data.BatchSampler and type(sampler.sampler) in (
        data.RandomSampler,
        data.SequentialSampler,
    )
    return sampler is not None and not is_plain


class ShardedSampler:
    """A batch sampler that yields this rank's share of each batch of another sampler, or the whole batch."""

    def __init__(
        self,
        base: Any,
        run: Training,
        *,
        is_whole: bool,
        of_lists: frozenset[lists.Path] = frozenset(),
        numbers: Numbering | None = None,
    ) -> None:
        self.base = base
        self.run = run
        self.is_whole = is_whole
        self.of_lists = of_lists
        """Where a whole batch has lists with an entry for each sample."""
        self.numbers = numbers or {}
        """What the numbers of a rank's own batch count, of which the whole batch has others."""
        self.rows: deque[tuple[int, ...]] = deque()
        self.indices: deque[list[object]] = deque()
        """The indices of all ranks' samples in the batches that wait in `rows`."""
        self.key = 0
        """The key of the pass, with --exact."""
        self.mark = 0
        """What tells the taken batches of a pass from others, where the sampler may have a state."""
        self.first_worker = 0
        """The worker that loads the first batch; those before it get a sample that nobody gets from them."""
        self._ahead: deque[list[object]] = deque()
        self._batches: Iterator[list[object]] = iter(())
        self._indices: Iterator[Any] | None = None
        self._latest: list[object] = []
        self._num_drawn = 0

    def __len__(self) -> int:
        return -(-len(self.base) // self.run.batches_per_step)

    def __iter__(self) -> Iterator[list[Any]]:
        self.rows.clear()
        self.indices.clear()
        self._ahead.clear()
        self._indices = None
        self._batches = self._draw_all()  # now, and not when the first batch is asked for
        return chain(self._passed_over(), self._each())

    def _passed_over(self) -> Iterator[list[object]]:
        num_workers, self.first_worker = self.first_worker, 0
        self.draw_ahead()
        for _ in range(num_workers):
            yield [(0, self._latest[:1])] if self.run.world.is_exact else self._latest[:1]

    def _each(self) -> Iterator[list[object]]:
        while True:
            self.draw_ahead()
            if not self._ahead:
                return
            yield self._ahead.popleft()

    def draw_ahead(self) -> None:
        """Draw the next batch now if none waits, so that no generator is switched while a batch loads."""
        if not self._ahead:
            self._ahead.extend(islice(self._batches, 1))

    def leave_out_taken(self) -> None:
        """Draw the batches that the checkpoint had, and no more: what comes next is drawn from the saved state."""
        run = self.run
        with run.generators.in_common():
            self._indices = iter(self.base)
            num_taken, resumed_key = run.pop_resumed_pass()
            self.key = (resumed_key or run.keys.next()) if run.world.is_exact else 0
        self._num_drawn = self.mark = 0
        for _ in range(num_taken):
            self.note_taken(self._draw())

    def note_taken(self, batch: object) -> None:
        if may_have_state(self.base):
            self.mark = zlib.crc32(repr(batch).encode(), self.mark)

    def _draw_all(self) -> Iterator[list[object]]:
        if self._indices is None:
            self.leave_out_taken()
        world, key = self.run.world, self.key
        while (batch := self._draw()) is not None:
            rows = batches.rows_of(len(batch), world.size)
            self.rows.append(rows)
            self.indices.append(batch)
            yield self._of_exact(batch, rows, key + self._num_drawn) if world.is_exact else self._own(batch, rows)

    def _draw(self) -> list[object] | None:
        """Return the indices of the next batch of all ranks; None at the end."""
        run = self.run
        with run.generators.in_common():  # a sampler may draw with each batch
            drawn = [list(one) for one in islice(self._indices or (), run.batches_per_step)]
        if not drawn:
            return None
        batch = [index for each in drawn for index in each]
        if run.is_reordered:
            batch.reverse()
        if not self._num_drawn and len(batch) < run.world.size:
            raise small_batch(len(batch), run.world)
        self._num_drawn += 1
        self._latest = batch
        return batch

    def _own(self, batch: list[object], rows: tuple[int, ...]) -> list[Any]:
        return batch if self.is_whole else batches.of_indices(batch, self.run.world.rank, rows)

    def _of_exact(self, batch: list[object], rows: tuple[int, ...], key: int) -> list[object]:
        """Return the shards that this process loads, each with its seed."""
        if self.is_whole:
            return [(key_of(key, -1), batch)]
        places = [one.rank for one in self.run.world.shards()]
        return [(key_of(key, place), batches.of_indices(batch, place, rows)) for place in places]


def small_batch(size: int, world: World) -> ScalingError:
    num_ranks = world.size
    if world.is_exact:
        return ScalingError(
            f"the script's batch has {size} sample{'' if size == 1 else 's'}, and --exact {num_ranks} cuts "
            f"it into {num_ranks} shards",
            f"use a larger batch, or fewer shards: echelon run --exact {1 << (size.bit_length() - 1)} …",
        )
    return ScalingError(
        f"the script's batch has {size} sample{'' if size == 1 else 's'}, but {num_ranks} ranks share it",
        f"use a larger batch, or at most {size} ranks: echelon run -n {size} …",
    )


def _begin_worker(rank: int, init: Any, worker: int) -> None:
    """Seed a loader's worker with random numbers that no other rank's worker draws."""
    if rank:
        seed_all((torch.initial_seed() + rank * _RANK_STEP) % (1 << 63))
    if init is not None:
        init(worker)


def _length_of(loader: DataLoader[object]) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None  # a stream that does not know its end


class Loop:
    def __init__(self, loader: DataLoader[object], run: Training) -> None:
        self.run = run
        self.num_rows = 0
        """The number of samples of the current batch, on all ranks."""
        self._num_batches = 0
        self._length = _length_of(loader)
        self._refuse_small_batches(loader)
        self.sampler: ShardedSampler | None = None
        """What deals the samples out; None for a stream."""
        self._has_own_collate = getattr(loader, "collate_fn", default_collate) is not default_collate
        self._loader = loader
        run.first_step.note_workers(getattr(loader, "num_workers", 0))
        self._draws = None if run.workers_draws is None else run.workers_draws.get(loader)
        with run.generators.in_common():
            self._inner = self._begin(loader)

    def _begin(self, loader: DataLoader[object]) -> Any:
        if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
            if self.run.batches_per_step > 1:
                raise ScalingError(
                    "--per-device-batch needs a dataset whose samples have an index, but the DataLoader reads a stream",
                    "remove --per-device-batch: the ranks then share each batch of the stream",
                )
            self._draws = None
            return iterate(loader)  # whole batches, which are cut when they come
        twin = self.run.sharded_loaders.get(loader)
        if twin is None:
            probes = (
                collating.probes(loader, self.run.generators)
                if self._has_own_collate and self.run.world.size > 1
                else []
            )
            of_lists = collating.lists_of_samples(probes)
            is_whole = collating.makes_rows(probes) or bool(of_lists)
            numbers = collating.numbering(loader, self.run.generators) if probes and not is_whole else {}
            sampler = ShardedSampler(
                loader.batch_sampler, self.run, is_whole=is_whole, of_lists=of_lists, numbers=numbers
            )
            if of_lists:
                self.run.say("each rank loads whole batches, for the collate function makes lists of samples")
            changes = {
                "batch_sampler": sampler,
                "worker_init_fn": partial(_begin_worker, 0 if is_whole else self.run.world.rank, loader.worker_init_fn),
            }
            if self.run.world.is_exact:
                changes["dataset"] = keys.Dataset(loader.dataset)
                changes["collate_fn"] = partial(keys.batches_of_shards, loader.collate_fn)
            if self._draws is not None:
                changes = self._draws.around({"collate_fn": loader.collate_fn, **changes})
            twin = self.run.sharded_loaders[loader] = batches.twin_of(loader, **changes)
        self.sampler = twin.batch_sampler
        if self._draws is not None and not batches.has_workers(twin):
            self._draws.begin()
            self.sampler.first_worker = self._draws.first_worker
        return iterate(twin)

    def _refuse_small_batches(self, loader: object) -> None:
        size = getattr(loader, "batch_size", None)
        if size is not None and size < self.run.world.size and not self.run.options.keeps_batch:
            raise small_batch(size, self.run.world)

    def __iter__(self) -> "Loop":
        return self

    def __len__(self) -> int:
        if self._length is None:
            raise as_of_library(TypeError("this DataLoader has no length"))
        return self._length

    def __next__(self) -> object:
        is_whole = self.sampler is None or self.sampler.is_whole
        self.run.raised.refuse_if_caught()
        self.run.enter(self)
        if self.sampler is not None:
            self.sampler.draw_ahead()
        try:
            with events.loading, self._generators(is_whole):
                batch = next(self._inner) if self._draws is None else self._draws.next(self._inner)
        except StopIteration:
            self.close()
            raise
        return self._shared(batch)

    def _generators(self, is_whole: bool) -> AbstractContextManager[Any]:
        """Return the context in which a batch is loaded: the common generators, or this rank's own."""
        generators = self.run.generators
        if self.sampler is not None and self.run.world.is_exact:
            return generators.kept()  # each shard begins with a seed
        return generators.in_common() if is_whole else generators.in_own()

    def _shared(self, batch: Any) -> object:
        run = self.run
        if self.sampler is None:
            if run.is_reordered:
                batch = in_other_order(batch)
            if run.world.size == 1:
                return batch
            size = batches.length_of(batch)
            if not size:
                return batch  # no rows for samples: whole on every rank, and models may share their arguments
            if size < run.world.size and not self._num_batches:
                raise small_batch(size, run.world)
            rows = batches.rows_of(size, run.world.size)
            events.stream(batch)
        else:
            rows = self.sampler.rows.popleft()
            size = self._size_of_whole(batch) if self.sampler.is_whole and run.world.size > 1 else 0
            if size and size < sum(rows) and not run.world.is_exact:
                rows = batches.rows_of(size, run.world.size)  # a collate function may drop samples
            _refuse_dropped(batch, rows, self.sampler)
            indices = self.sampler.indices.popleft()
            self.sampler.note_taken(indices)
            events.batch(batch, indices)
        self._num_batches += 1
        self.num_rows = sum(rows)
        if run.world.size == 1:
            return batch
        is_ragged = self._has_own_collate
        if self.sampler is None or self.sampler.is_whole:
            is_listed = self.sampler is not None and run.world.is_exact
            of_lists = frozenset() if self.sampler is None else self.sampler.of_lists
            batch = batches.of_whole(batch[0] if is_listed else batch, run.world, rows, of_lists)
        elif run.world.is_exact:
            batch = batches.of_shards(batch, run.world, rows, may_be_ragged=is_ragged, numbers=self.sampler.numbers)
        else:
            batch = batches.of_parts(batch, run.world, rows, may_be_ragged=is_ragged, numbers=self.sampler.numbers)
        run.ignore_index.ask(shards_of(batch))
        return batch

    def _size_of_whole(self, batch: object) -> int:
        of_lists = frozenset() if self.sampler is None else self.sampler.of_lists
        return lists.length(batch, of_lists) if of_lists else batches.length_of(batch)

    def close(self) -> None:
        self.run.leave(self)

    def __del__(self) -> None:
        self.close()


def _refuse_dropped(batch: Any, rows: tuple[int, ...], sampler: ShardedSampler) -> None:
    """Refuse a collate function that leaves samples out: the shards of an exact run have fixed samples."""
    is_listed = sampler.run.world.is_exact and sampler.is_whole
    size, num_samples = batches.length_of(batch[0]) if is_listed else 0, sum(rows)
    if size and size != num_samples:
        raise ScalingError(
            f"with --exact the collate function returns {size} of {num_samples} samples, but each shard has "
            "its own samples",
            "let the dataset leave these samples out, or run without --exact",
        )


class WholeLoop:
    """One pass over a loader that every rank loads whole; all ranks draw the same numbers."""

    def __init__(self, loader: DataLoader[object], run: Training) -> None:
        self._run = run
        self._loader = loader
        with run.generators.in_common():
            self._inner = iterate(loader)

    def __iter__(self) -> "WholeLoop":
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> object:
        with self._run.generators.in_common():
            return next(self._inner)


class ShardedLoader:
    def __init__(self, loader: "DataLoader[object]", run: Training) -> None:
        self._loader = loader
        self._run = run

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Loop:
        self._run.begin_training()
        return Loop(self._loader, self._run)

    @property
    def inner(self) -> "DataLoader[object]":
        return self._loader

    def behind(self, change: Callable[[Any], object], more: dict[str, Any]) -> "ShardedLoader":
        """Return the loader with other batches of indices, which `change` makes of its own, and other attributes."""
        indices = change(self._loader.batch_sampler)
        return ShardedLoader(batches.twin_of(self._loader, batch_sampler=indices, **more), self._run)
