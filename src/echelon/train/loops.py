"""Iterate over a DataLoader with this rank's share of every batch, in the global order of one device."""

import copy
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Iterator, List, Optional

from torch.utils.data import DataLoader, IterableDataset

from . import batches
from .batches import Share
from .record import in_other_order
from .refusal import Refusal

if TYPE_CHECKING:
    from .run import Run

_END = object()
iterate = DataLoader.__iter__  # the original, whatever is hooked later


class ShardedSampler:
    """A batch sampler that yields this rank's share of each batch of another."""

    def __init__(self, base: Any, run: "Run") -> None:
        self.base = base
        self.run = run
        self.shares: Deque[Share] = deque()

    def __len__(self) -> int:
        return len(self.base)

    def __iter__(self) -> Iterator[List[Any]]:
        run = self.run
        self.shares.clear()
        with run.streams.in_common():
            indices = iter(self.base)
        num_batches = 0
        while True:
            with run.streams.in_common():  # a sampler may draw with each batch
                batch = next(indices, _END)
            if batch is _END:
                return
            batch = list(batch)  # type: ignore[call-overload]
            if run.is_reordered:
                batch.reverse()
            if not num_batches and len(batch) < run.world.size:
                raise small_batch(len(batch), run.world.size)
            num_batches += 1
            mine = batches.share(len(batch), run.world.rank, run.world.size)
            self.shares.append(mine)
            yield batches.of_indices(batch, mine)


def small_batch(size: int, num_ranks: int) -> Refusal:
    """Return the refusal of a batch that has fewer samples than there are ranks."""
    return Refusal(
        "the script's batch has %d sample%s, and there are %d ranks to share it"
        % (size, "" if size == 1 else "s", num_ranks),
        "a larger batch, or at most %d ranks: echelon run -n %d …" % (size, size),
    )


def _length_of(loader: Any) -> Optional[int]:
    try:
        return len(loader)
    except TypeError:
        return None  # a stream that does not know its end


class Loop:
    """One pass over a sharded loader."""

    def __init__(self, loader: Any, run: "Run") -> None:
        self.run = run
        self.share: Optional[Share] = None
        self.num_batches = 0
        self.num_backwards = 0
        self._length = _length_of(loader)
        self._refuse_small_batches(loader)
        self._shares: Optional[Deque[Share]] = None
        self._loader = loader
        run.first_step.note_workers(getattr(loader, "num_workers", 0))
        with run.streams.in_common():
            self._inner = self._begin(loader)

    def _begin(self, loader: Any) -> Any:
        if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
            return iterate(loader)  # whole batches, which are cut when they come
        twin = self.run.twins.get(loader)
        if twin is None:
            twin = copy.copy(loader)
            # batch_sampler cannot be set by assignment once a loader exists
            twin.__dict__["batch_sampler"] = ShardedSampler(loader.batch_sampler, self.run)
            self.run.twins[loader] = twin
        self._shares = twin.batch_sampler.shares
        return iterate(twin)

    def _refuse_small_batches(self, loader: Any) -> None:
        size = getattr(loader, "batch_size", None)
        if size is not None and size < self.run.world.size:
            raise small_batch(size, self.run.world.size)

    def __iter__(self) -> "Loop":
        return self

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("this DataLoader has no length")
        return self._length

    def __next__(self) -> Any:
        self.run.enter(self)  # what the samples draw is this rank's own
        try:
            batch = next(self._inner)
        except StopIteration:
            self.close()
            self._refuse_without_backward()
            raise
        if self._shares is not None:
            self.share = self._shares.popleft()
        else:
            size = batches.length_of(batch)
            self.share = batches.share(size, self.run.world.rank, self.run.world.size)
            batch = batches.cut(in_other_order(batch) if self.run.is_reordered else batch, self.share)
        self.num_batches += 1
        return batch

    def _refuse_without_backward(self) -> None:
        if self.num_batches and not self.num_backwards:
            raise Refusal(
                "a loop over a DataLoader was taken for training and shared among the ranks, "
                "but it never called backward(): what it computed is of one rank's samples alone",
                "put evaluation under torch.no_grad(), or the model into eval() before the loop begins",
            )

    def close(self) -> None:
        """Leave the loop: what is drawn from now on is the same on all ranks."""
        self.run.leave(self)

    def __del__(self) -> None:
        self.close()


class WholeLoop:
    """One pass over a loader that every rank sees whole: what it draws is the same on all."""

    def __init__(self, loader: Any, run: "Run") -> None:
        self._run = run
        self._loader = loader
        with run.streams.in_common():
            self._inner = iterate(loader)

    def __iter__(self) -> "WholeLoop":
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        with self._run.streams.in_common():
            return next(self._inner)


def new_twins() -> "weakref.WeakKeyDictionary[Any, Any]":
    """Return a place for the sharded copies of loaders, which keep their workers from epoch to epoch."""
    return weakref.WeakKeyDictionary()
