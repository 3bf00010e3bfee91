"""Find out what a script's own collate function makes of samples, by calling it with the first few."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import batches
from .global_tensors import lists
from .global_tensors.numbered import NOT_JOINED, OF_SAMPLES, Numbering
from .global_tensors.tensors import tensors_of
from .rng.generators import Generators

_PROBED = (3, 2)
_NUMBERED = 5
"""Samples that are cut in two ways into parts of two and three."""
Collate = Callable[[Sequence[object]], object]


def probes(loader: Any, generators: Generators) -> list[tuple[int, object]]:
    with generators.kept():
        try:
            return [
                (size, loader.collate_fn([loader.dataset[place] for place in range(size)]))
                for size in _PROBED
                if size <= len(loader.dataset)
            ]
        except (LookupError, TypeError):  # places are not its keys
            return []


def makes_rows(probed: list[tuple[int, object]]) -> bool:
    """Say whether a collate function makes tensors with a row for each sample; it may pad all rows.

    If so, each rank loads whole batches, because a part would be padded to its own longest sample.
    """
    return bool(probed) and all(batches.has_rows(batch, size) for size, batch in probed)


def lists_of_samples(probed: list[tuple[int, object]]) -> frozenset[lists.Path]:
    """Return the paths of the lists that have an entry with tensors for each sample, such as boxes of images.

    Then each rank loads whole batches: the script may look at all samples, and a model gets its rank's part of a list.
    """
    if len(probed) < len(_PROBED):
        return frozenset()
    return frozenset.intersection(*(lists.paths(batch, size) for size, batch in probed))


def numbering(loader: Any, generators: Generators) -> Numbering:
    """Return which tensors of a batch number its rows or samples, and so differ where a part is made by itself."""
    with generators.kept():
        try:
            return numbering_of(loader.collate_fn, [loader.dataset[place] for place in range(_NUMBERED)])
        except Exception:  # noqa: BLE001  (the script's own batches raise it again, if they do)
            return {}


def numbering_of(collate: Collate, samples: Sequence[object]) -> Numbering:
    """Compare the batch of some samples with those of their first and last ones, at least two at a time."""
    whole, again = _tensors(collate(samples)), _tensors(collate(samples))
    candidates = [_counted(collate, samples, at, whole) for at in range(2, len(samples) - 1)]
    numbers: Numbering = {}
    for place, tensor in enumerate(whole):
        common = set.intersection(*(of_tensors[place] for of_tensors in candidates))
        if NOT_JOINED in common or (common and torch.equal(tensor, again[place])):  # else it is drawn
            numbers[place] = min(common)
    return numbers


def _counted(collate: Collate, samples: Sequence[object], at: int, whole: list[torch.Tensor]) -> list[set[int]]:
    """Return for each tensor what its numbers may count, if the batch is made in two parts."""
    first, last = _tensors(collate(samples[:at])), _tensors(collate(samples[at:]))
    if not len(first) == len(last) == len(whole):
        return [set() for _ in whole]
    counted = []
    for tensor, head, tail in zip(whole, first, last, strict=False):
        if len(tensor) != len(head) + len(tail):
            counted.append({NOT_JOINED})
            continue
        difference = _difference(tensor, head, tail)
        places = {place for place, other in enumerate(first) if len(other) == difference}
        counted.append(places | ({OF_SAMPLES} if difference == at else set()))
    return counted


def _difference(whole: torch.Tensor, first: torch.Tensor, last: torch.Tensor) -> int | None:
    """Return the number that is added to all elements of the last part in the whole; None without such a number."""
    if whole.is_floating_point() or whole.is_complex() or whole.dtype == torch.bool or whole.is_sparse:
        return None
    if not whole.shape[1:] == first.shape[1:] == last.shape[1:]:
        return None
    if not last.numel() or not torch.equal(whole[: len(first)], first):
        return None
    added = whole[len(first) :] - last
    least = int(added.min())
    return least if 0 < least == int(added.max()) else None


def _tensors(batch: object) -> list[torch.Tensor]:
    return [tensor for tensor in tensors_of(batch) if tensor.dim()]
