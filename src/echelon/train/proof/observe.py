"""Record the training of a script that distributes itself, by hooks alone: nothing of it is changed.

In the one-process run its batches are changed, to those that several ranks have together: a DistributedSampler deals
one order of all samples out in turn, so N batches of b are the same samples as one batch of N·b.
"""

import json
import os
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..streams import seed_all
from ..world import SEED_OF_RECORDS
from .record import DIGESTS, Record, asked, in_other_order

MOST_BYTES = 4096  # of each sample, which tell it from others


def begin(environ: Mapping[str, str]) -> None:
    """Hook what a training does, for the record that the environment asks for."""
    rank = int(environ.get("RANK", "0"))
    record = asked(environ, is_main=rank == 0)
    if record is None:
        return
    seed_all(SEED_OF_RECORDS + rank)  # ranks differ unless the script seeds them, as they would without us
    _hook_backward(record)
    _hook_steps(record, is_nudged=bool(environ.get("ECHELON_RECORD_NUDGED")))
    loaders = Loaders(record, _like(environ), is_reordered=bool(environ.get("ECHELON_RECORD_REORDERED")))
    _hook_loaders(loaders)


def _like(environ: Mapping[str, str]) -> Dict[str, Any]:
    """Return what the run on several ranks had, where this one is to be like it."""
    if not environ.get("ECHELON_RECORD_LIKE"):
        return {}
    with open(environ["ECHELON_RECORD_LIKE"]) as file:
        about: Dict[str, Any] = json.load(file)
    return about


def _hook_backward(record: Record) -> None:
    original = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        original(tensors, *args, **kwargs)
        losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if len(losses) == 1 and losses[0].numel() == 1:
            record.loss = float(losses[0].detach())

    torch.autograd.backward = backward


def _hook_steps(record: Record, *, is_nudged: bool) -> None:
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
        if is_nudged:
            nudge(parameters)
        record.before_step(optimizer, parameters)

    register_optimizer_step_pre_hook(before)


def nudge(parameters: List[nn.Parameter]) -> None:
    """Move each gradient by its last bit, up or down by lot: what a sum in another order does."""
    lots = torch.Generator().manual_seed(SEED_OF_RECORDS)
    for parameter in parameters:
        gradient: Any = parameter.grad
        if gradient is None or gradient.layout != torch.strided or not gradient.is_floating_point():
            continue
        local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
        signs = torch.randint(0, 2, local.shape, generator=lots).to(local) * 2 - 1
        size = local.detach().abs() + local.detach().pow(2).mean().sqrt()
        with torch.no_grad():
            local.add_(signs * size * torch.finfo(local.dtype).eps)


class Loaders:
    """What the script's loaders give; in a run that is to be like another, what that one's ranks had together."""

    def __init__(self, record: Record, like: Dict[str, Any], *, is_reordered: bool) -> None:
        self.record = record
        self.is_reordered = is_reordered
        self._pid = os.getpid()
        self._likes: List[Dict[str, Any]] = like.get("loaders", [])
        self._facts: List[Dict[str, Any]] = []
        self._notes: List[str] = []
        record.about.update(loaders=self._facts, notes=self._notes, num_batches=0)

    def made(self, loader: "DataLoader[Any]") -> None:
        """Take note of a loader, or give it the batches of all ranks."""
        if os.getpid() != self._pid:
            return  # in a worker of another loader
        place = len(self._facts)
        sampler = _dealer(loader)
        self._facts.append(
            {
                "batch_size": getattr(loader.batch_sampler, "batch_size", None),
                "deals": None if sampler is None else _facts_of(sampler),
                "epochs": [],
            }
        )
        loader.__dict__["_echelon_place"] = place
        like = self._likes[place] if place < len(self._likes) else {}
        if like.get("deals") and like["batch_size"] and getattr(loader.batch_sampler, "sampler", None) is not None:
            self._become_like(loader, like)

    def begun(self, loader: "DataLoader[Any]") -> None:
        """Note with which epoch a pass over a loader begins, or begin it with that of the other run."""
        place = loader.__dict__.get("_echelon_place")
        if place is None or os.getpid() != self._pid:
            return
        epochs = self._facts[place]["epochs"]
        epochs.append(getattr(_dealer(loader), "epoch", 0))
        if loader.__dict__.get("_echelon_replaced"):
            theirs = self._likes[place]["epochs"]
            loader.__dict__["_echelon_replaced"].set_epoch(theirs[min(len(epochs), len(theirs)) - 1])

    def gave(self, batch: Any) -> None:
        """Count the samples of a batch that is trained on."""
        if not torch.is_grad_enabled() or os.getpid() != self._pid:
            return
        self.record.about["num_batches"] += 1
        tensors = list(_tensors(batch))
        if tensors and len(tensors[0]):
            size = tensors[0].size(0)
            self.record.num_samples += size
            self.record.digest += digest([one for one in tensors if one.size(0) == size])

    def _become_like(self, loader: "DataLoader[Any]", like: Dict[str, Any]) -> None:
        """Let one process draw what N ranks draw together: batches of N·b, and the samples that are dealt twice."""
        deals, batches = like["deals"], loader.batch_sampler
        num_ranks, size = deals["num_replicas"], like["batch_size"]
        whole = size * num_ranks
        if batches.batch_size == size:  # type: ignore[union-attr]
            batches.batch_size = whole  # type: ignore[union-attr]
            loader.__dict__["batch_size"] = whole
            self._note("one process draws batches of %d, as %d ranks of %d do together" % (whole, num_ranks, size))
        if _dealer(loader) is None and deals["is_torchs"]:
            dealer: Any = DistributedSampler(loader.dataset, 1, 0, deals["shuffle"], deals["seed"], deals["drop_last"])
            batches.sampler = loader.__dict__["sampler"] = dealer  # type: ignore[union-attr]
            loader.__dict__["_echelon_replaced"] = dealer
            self._note("one process draws its samples in the order of the DistributedSampler that several ranks have")
        if deals["is_torchs"]:
            self._pad(batches.sampler, num_ranks)  # type: ignore[union-attr]

    def _pad(self, sampler: Any, num_ranks: int) -> None:
        """Draw as many samples as N ranks do, of whom each has as many as the others."""
        if not isinstance(sampler, DistributedSampler) or sampler.num_replicas != 1:
            return
        size = len(sampler.dataset)  # type: ignore[arg-type]
        sampler.num_samples = sampler.total_size = (
            size // num_ranks * num_ranks if sampler.drop_last else -(-size // num_ranks) * num_ranks
        )
        if sampler.total_size > size:
            more = sampler.total_size - size
            self._note(
                "%d sample%s drawn twice in an epoch, as DistributedSampler does for %d ranks"
                % (more, " is" if more == 1 else "s are", num_ranks)
            )

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)


def _dealer(loader: "DataLoader[Any]") -> Any:
    """Return the sampler that deals samples out to ranks, if there is one."""
    sampler = getattr(loader.batch_sampler, "sampler", None)
    return sampler if hasattr(sampler, "num_replicas") else None


def _facts_of(sampler: Any) -> Dict[str, Any]:
    return {
        "is_torchs": isinstance(sampler, DistributedSampler),
        "num_replicas": int(sampler.num_replicas),
        "shuffle": bool(getattr(sampler, "shuffle", False)),
        "seed": int(getattr(sampler, "seed", 0) or 0),
        "drop_last": bool(getattr(sampler, "drop_last", False)),
    }


def _hook_loaders(loaders: Loaders) -> None:
    init, iterate, following = DataLoader.__init__, DataLoader.__iter__, _BaseDataLoaderIter.__next__

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        loaders.made(self)

    def begun(self: Any) -> Any:
        loaders.begun(self)
        return iterate(self)

    def gave(self: Any) -> Any:
        batch = following(self)
        if loaders.is_reordered and isinstance(self._dataset, IterableDataset):
            batch = in_other_order(batch)
        loaders.gave(batch)
        return batch

    DataLoader.__init__ = made  # type: ignore[method-assign]
    DataLoader.__iter__ = begun  # type: ignore[method-assign]
    _BaseDataLoaderIter.__next__ = gave  # type: ignore[method-assign]
    if loaders.is_reordered:
        _hook_order()


def _hook_order() -> None:
    """Reverse each batch of indices, so that also what is no tensor comes in another order."""
    original: Callable[[Any], Any] = DataLoader._index_sampler.fget  # type: ignore[attr-defined]

    def index_sampler(self: Any) -> Any:
        sampler = original(self)
        is_stream = isinstance(self.dataset, IterableDataset)
        return sampler if is_stream or not self._auto_collation else _Reversed(sampler)

    DataLoader._index_sampler = property(index_sampler)  # type: ignore[assignment]


class _Reversed:
    """A batch sampler whose batches are backwards."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[List[Any]]:
        for batch in self._sampler:
            yield list(batch)[::-1]


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
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


def digest(tensors: List[torch.Tensor]) -> int:
    """Return a number that the same samples give in whatever order, and hardly any others."""
    total: Optional[torch.Tensor] = None
    for tensor in tensors:
        content = tensor.detach().cpu().reshape(tensor.size(0), -1).contiguous().view(torch.uint8)[:, :MOST_BYTES]
        weights = (torch.arange(content.size(1)) + 1) * 6_364_136_223_846_793_005
        number = ((content.to(torch.int64) + 1) * weights).sum(1)
        total = number if total is None else total * 1_442_695_040_888_963_407 + number
    if total is None:
        return 0
    total = total ^ (total >> 29)
    return int((total * total).sum()) % DIGESTS
