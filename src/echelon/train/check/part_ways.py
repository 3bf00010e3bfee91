"""The ways in which a result for all rows of a batch may follow from those for two parts of the rows."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..global_tensors import kept_tensors
from ..wire import device as devices
from .closeness import HALF, differs

SAME, SUM, MEAN, ROWS = "same", kept_tensors.SUM, kept_tensors.MEAN, kept_tensors.ROWS
_OF_NUMBERS = 1e-4
"""The share of a number that may be rounding."""


class Sizes(NamedTuple):
    """The numbers of rows of a batch and of its two parts."""

    first: int
    rest: int

    @property
    def all_rows(self) -> int:
        return self.first + self.rest


def fits(whole: Any, first: Any, rest: Any, sizes: Sizes) -> set[str] | None:
    """Return all ways in which a result may follow from those of the parts; None where nothing can be said."""
    if not all(isinstance(one, torch.Tensor) for one in (whole, first, rest)):
        are_single = all(not isinstance(one, torch.Tensor) or one.numel() == 1 for one in (whole, first, rest))
        return _of_numbers(float(whole), float(first), float(rest), sizes) if are_single else None
    three = [whole, first, rest]
    is_plain = all(one.layout == torch.strided and not one.is_quantized and not one.is_meta for one in three)
    if not is_plain or len({one.dim() for one in three}) > 1:
        return None
    dims = dims_of_rows(three, sizes)
    if dims:
        dim, ratio = dims[0]
        parts = torch.split(whole, [ratio * sizes.first, ratio * sizes.rest], dim)
        is_same = all(_are_equal(*_common(one, part)) for one, part in zip((first, rest), parts, strict=False))
        return {ROWS} if is_same else set()
    if whole.shape == first.shape == rest.shape:
        return _of_same_shape(whole, first, rest, sizes)
    if whole.dim() and whole.size(0) == first.size(0) + rest.size(0) and whole.shape[1:] == first.shape[1:]:
        return {ROWS} if rest.shape[1:] == first.shape[1:] and _are_equal(torch.cat([first, rest]), whole) else set()
    return None


def kept_ways(
    attributes: Sequence[dict[kept_tensors.AttributePlace, list[torch.Tensor]]], sizes: Sizes
) -> dict[kept_tensors.AttributePlace, set[str]]:
    """Return the ways in which each tensor that a model keeps may follow from the samples, unless all have it alike."""
    ways: dict[kept_tensors.AttributePlace, set[str]] = {}
    for place in attributes[0]:
        every = [one.get(place, []) for one in attributes]
        if len(set(map(len, every))) > 1:
            ways[place] = set()
            continue
        possible = [_ways(list(three), sizes) for three in zip(*every, strict=True)]
        of_samples = [one for one in possible if SAME not in one]
        if of_samples:
            ways[place] = set.intersection(*of_samples)
    return ways


def _ways(three: list[torch.Tensor], sizes: Sizes) -> set[str]:
    possible = fits(three[0], three[1], three[2], sizes) or set()
    dims = dims_of_rows(three, sizes) if len({one.dim() for one in three}) == 1 else []
    if ROWS in possible:
        return {"{} {} {}".format(ROWS, *dims[0])} if dims else set()
    return possible


def dims_of_rows(three: list[torch.Tensor], sizes: Sizes) -> list[tuple[int, int]]:
    """Return the dims that are as long as the rows, or a multiple, and this multiple."""
    dims = []
    for dim, (both, first, rest) in enumerate(zip(*(one.shape for one in three), strict=False)):
        ratio = both // sizes.all_rows
        if ratio and (both, first, rest) == (ratio * sizes.all_rows, ratio * sizes.first, ratio * sizes.rest):
            dims.append((dim, ratio))
    return dims


def _of_same_shape(whole: torch.Tensor, first: torch.Tensor, rest: torch.Tensor, sizes: Sizes) -> set[str]:
    if whole.numel() == 1 and not whole.is_complex():
        return _of_numbers(float(whole), float(first), float(rest), sizes, is_half=_is_half(whole))
    ways = {SAME} if _are_equal(first, whole) and _are_equal(rest, whole) else set()
    if whole.dtype == torch.bool:
        return ways
    if _are_equal(first + rest, whole):
        ways.add(SUM)
    is_real = whole.is_floating_point() or whole.is_complex()
    if is_real and _are_equal((first * sizes.first + rest * sizes.rest) / sizes.all_rows, whole):
        ways.add(MEAN)
    return ways


def _of_numbers(whole: float, first: float, rest: float, sizes: Sizes, *, is_half: bool = False) -> set[str]:
    if not math.isfinite(whole):
        return {SAME, MEAN}  # nothing contradicts a loss that is a mean
    candidates = {SUM: first + rest, MEAN: (first * sizes.first + rest * sizes.rest) / sizes.all_rows}
    if first == rest:
        candidates[SAME] = first
    tolerance = HALF if is_half else _OF_NUMBERS
    size = max(abs(first), abs(rest))
    return {kind for kind, one in candidates.items() if abs(one - whole) <= tolerance * max(abs(whole), size) + 1e-12}


def _is_half(tensor: torch.Tensor) -> bool:
    return devices.is_autocast_enabled() or tensor.dtype in (torch.half, torch.bfloat16)


def _are_equal(own: torch.Tensor, expected: torch.Tensor) -> bool:
    return own.shape == expected.shape and not differs(own, expected)


def _common(own: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut two tensors to what they share: a part may be padded to its own longest sample."""
    for dim, (size, other_size) in enumerate(zip(own.shape, other.shape, strict=False)):
        own, other = (one.narrow(dim, 0, min(size, other_size)) for one in (own, other))
    return own, other
