"""Record the batches of the loaders in a script that distributes itself: the samples, the pass, training or evaluation.

The one-process run gets the batches that several ranks have together. A DistributedSampler deals
one order of all samples out to the ranks in turn, so N batches of b have the same samples as one batch of N·b.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from ...orders.records import NUM_DIGESTS
from ...pytorch import internals
from .. import patches
from .record import KEPT_SAMPLES, Record, in_other_order

MOST_BYTES = 4096  # of each sample, which identify it


class Loaders:
    """The batches of the script's loaders; in a run that repeats another, the batches of that run's ranks together."""

    def __init__(self, record: Record, like: dict[str, Any]) -> None:
        self.record = record
        self.is_reordered = record.order.is_reordered
        self._pid = os.getpid()
        self._likes: list[dict[str, object]] = like.get("loaders", [])
        self._facts: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._pending: dict[int, list[int]] = {}  # samples that were not yet trained on, by the id of their pass
        self._chosen: dict[int, list[Any]] = {}  # their indices, where a sampler gave them
        self._places: dict[int, int] = {}  # the number of a pass's loader, in the order of creation
        self._training: set[int] = set()  # the ids of passes with training
        record.about.update(loaders=self._facts, notes=self._notes, num_batches=0)
        record.facts.update(loaders=self._facts, evaluations=[])

    def made(self, loader: "DataLoader[object]") -> None:
        if os.getpid() != self._pid:
            return  # in a worker of another loader
        place = len(self._facts)
        sampler = dealer(loader)
        self._facts.append(
            {
                "batch_size": getattr(loader.batch_sampler, "batch_size", None),
                "deals": None if sampler is None else _facts_of(sampler),
                "epochs": [],
                "began": [],
                "is_for_training": False,
            }
        )
        loader.__dict__["_echelon_place"] = place
        like = self._likes[place] if place < len(self._likes) else {}
        is_dealt = like.get("deals") and like["batch_size"] and like["is_for_training"]
        if is_dealt and getattr(loader.batch_sampler, "sampler", None) is not None:
            self._become_like(loader, like)

    def begun(self, loader: "DataLoader[object]", iterator: object) -> None:
        self._pending.pop(id(iterator), None)
        self._chosen.pop(id(iterator), None)
        self._training.discard(id(iterator))
        self._places[id(iterator)] = loader.__dict__.get("_echelon_place", -1)

    def begins(self, loader: "DataLoader[object]") -> None:
        """Begin a pass over a loader, with the epoch of that pass in the other run."""
        place = loader.__dict__.get("_echelon_place")
        if place is None or os.getpid() != self._pid:
            return
        epochs = self._facts[place]["epochs"]
        self._facts[place]["began"].append(self.record.step + 1)
        epochs.append(int(getattr(dealer(loader), "epoch", 0)))
        if loader.__dict__.get("_echelon_replaced"):
            theirs = self._likes[place]["epochs"]
            loader.__dict__["_echelon_replaced"].set_epoch(theirs[min(len(epochs), len(theirs)) - 1])

    def gave(self, iterator: object, batch: object) -> None:
        if os.getpid() != self._pid:
            return
        if torch.is_grad_enabled():
            self.record.about["num_batches"] += 1
        tensors = list(_tensors(batch))
        self.record.batch = tensors, given_by(iterator)
        if tensors and len(tensors[0]):
            size = tensors[0].size(0)
            samples = digests([one for one in tensors if one.size(0) == size])
            self._pending.setdefault(id(iterator), []).extend(samples)
            self._chosen.setdefault(id(iterator), []).extend(self.record.batch[1])

    def ended(self, iterator: object) -> None:
        """Note the end of a pass; a pass without training is an evaluation."""
        samples = self._pending.pop(id(iterator), [])
        if id(iterator) not in self._training and samples and os.getpid() == self._pid:
            place = self._places.get(id(iterator), -1)
            self.record.facts["evaluations"].append(
                {"step": self.record.step, "samples": len(samples), "loader": place, "drawn": samples[:KEPT_SAMPLES],
                 "meetings": self.record.meetings}
            )  # fmt: skip

    def trained(self) -> None:
        for key, samples in self._pending.items():
            if torch.is_grad_enabled() and samples:
                self._training.add(key)
                self.record.samples += samples
                self.record.chosen += self._chosen.pop(key, [])
                samples.clear()
                if self._places.get(key, -1) >= 0:
                    self._facts[self._places[key]]["is_for_training"] = True

    def _become_like(self, loader: "DataLoader[object]", like: dict[str, Any]) -> None:
        """Let one process draw the samples of N ranks: batches of N·b, and the samples that are dealt twice."""
        deals, batches = like["deals"], loader.batch_sampler
        num_ranks, size = deals["num_replicas"], like["batch_size"]
        whole = size * num_ranks
        if batches.batch_size == size:  # type: ignore[union-attr]
            batches.batch_size = whole  # type: ignore[union-attr]
            loader.__dict__["batch_size"] = whole
            self._note(f"one process draws batches of {whole:d}, as {num_ranks} ranks of {size} do together")
        if dealer(loader) is None and deals["is_torchs"]:
            dealt: Any = DistributedSampler(loader.dataset, 1, 0, deals["shuffle"], deals["seed"], deals["drop_last"])
            batches.sampler = loader.__dict__["sampler"] = dealt  # type: ignore[union-attr]
            loader.__dict__["_echelon_replaced"] = dealt
            self._note("one process draws its samples in the order that the DistributedSampler gives several ranks")
        if deals["is_torchs"]:
            self._pad(batches.sampler, num_ranks)  # type: ignore[union-attr]

    def _pad(self, sampler: object, num_ranks: int) -> None:
        """Draw as many samples as N ranks do; each rank has the same number."""
        if not isinstance(sampler, DistributedSampler) or sampler.num_replicas != 1:
            return
        size = len(sampler.dataset)  # type: ignore[arg-type]
        sampler.num_samples = sampler.total_size = (
            size // num_ranks * num_ranks if sampler.drop_last else -(-size // num_ranks) * num_ranks
        )
        if sampler.total_size > size:
            more = sampler.total_size - size
            self._note(
                f"{more} sample{' is' if more == 1 else 's are'} drawn twice in an epoch, as "
                f"DistributedSampler does for {num_ranks} ranks"
            )

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)


def dealer(loader: "DataLoader[object]") -> object:
    """Return the sampler that deals samples out to ranks; None if there is none."""
    sampler = getattr(loader.batch_sampler, "sampler", None)
    return sampler if hasattr(sampler, "num_replicas") else None


def _facts_of(sampler: Any) -> dict[str, object]:
    return {
        "is_torchs": isinstance(sampler, DistributedSampler),
        "num_replicas": int(sampler.num_replicas),
        "rank": int(getattr(sampler, "rank", 0) or 0),
        "shuffle": bool(getattr(sampler, "shuffle", False)),
        "seed": int(getattr(sampler, "seed", 0) or 0),
        "drop_last": bool(getattr(sampler, "drop_last", False)),
    }


def hook(loaders: Loaders, before_batch: Callable[[], None], after_batch: Callable[[], None]) -> None:
    init, iterate, following = DataLoader.__init__, DataLoader.__iter__, internals.LoaderIterator.__next__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        loaders.made(self)

    def begun(self: Any) -> object:
        loaders.begins(self)
        before_batch()
        iterator = iterate(self)
        loaders.begun(self, iterator)
        return iterator

    def gave(self: object) -> object:
        before_batch()
        try:
            batch = following(self)
        except StopIteration:
            loaders.ended(self)
            raise
        if loaders.is_reordered and isinstance(internals.dataset_of(self), IterableDataset):
            batch = in_other_order(batch)
        with loaders.record.clock.paused():
            loaders.gave(self, batch)
            after_batch()
        return batch

    why = "A record has the batches that the script gets."
    patches.replace(DataLoader, "__init__", made, why=why)
    patches.replace(DataLoader, "__iter__", begun, why=why)
    patches.replace(internals.LoaderIterator, "__next__", gave, why=why)
    _hook_order(-1 if loaders.is_reordered else 1)


def _hook_order(stride: int) -> None:
    """Note each batch of indices; with stride -1 reverse it, so that values other than tensors are reordered too."""
    original: Callable[[Any], Any] = getattr(DataLoader, internals.INDEX_SAMPLER).fget

    def index_sampler(self: Any) -> object:
        sampler = original(self)
        is_stream = isinstance(self.dataset, IterableDataset)
        return sampler if is_stream or not internals.is_batching(self) else _Noted(sampler, stride)

    why = "A record names samples, and a run to compare with has the samples of each batch in another order."
    patches.replace(DataLoader, internals.INDEX_SAMPLER, property(index_sampler), why=why)


class _Noted:
    """A batch sampler whose batches are kept until the loader gives them."""

    def __init__(self, sampler: Any, stride: int) -> None:
        self._sampler = sampler
        self._stride = stride
        self.drawn: deque[list[object]] = deque()

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[list[Any]]:
        self.drawn.clear()
        for batch in self._sampler:
            self.drawn.append(list(batch)[:: self._stride])
            yield self.drawn[-1]


def given_by(iterator: object) -> list[object]:
    """Return the indices of the batch that a loader's iterator has just given; empty where they are not known."""
    sampler = getattr(iterator, internals.INDEX_SAMPLER, None)
    return sampler.drawn.popleft() if isinstance(sampler, _Noted) and sampler.drawn else []


def _tensors(batch: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of a batch that have a dim of samples."""
    if isinstance(batch, torch.Tensor):
        if batch.dim() and batch.layout == torch.strided:
            yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _tensors(value)


def digests(tensors: list[torch.Tensor]) -> list[int]:
    """Return a number for each sample that is almost surely unique."""
    total: Any = None
    for tensor in tensors:
        content = tensor.detach().cpu().reshape(tensor.size(0), -1).contiguous().view(torch.uint8)[:, :MOST_BYTES]
        weights = (torch.arange(content.size(1)) + 1) * 6_364_136_223_846_793_005
        number = ((content.to(torch.int64) + 1) * weights).sum(1)
        total = number if total is None else total * 1_442_695_040_888_963_407 + number
    total = total ^ (total >> 29)
    numbers: list[int] = ((total * total) % NUM_DIGESTS).tolist()
    return numbers
