"""How a result for a batch follows from the results for two parts of its rows: rows, a sum, a mean, or nothing."""

import math
from typing import Any, List, NamedTuple, Optional, Set, Tuple

import torch

from .. import device as devices
from .closeness import OF_HALF, differs

SAME, SUM, MEAN, ROWS = "same", "sum", "mean", "rows"
_OF_NUMBERS = 1e-4
"""The share of a number that may be rounding."""


class Sizes(NamedTuple):
    """The numbers of rows of a batch and of its two parts."""

    first: int
    rest: int

    @property
    def all_rows(self) -> int:
        return self.first + self.rest


def fits(whole: Any, first: Any, rest: Any, sizes: Sizes) -> Optional[Set[str]]:
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
        is_same = all(_are_equal(*_common(one, part)) for one, part in zip((first, rest), parts))  # noqa: B905
        return {ROWS} if is_same else set()
    if whole.shape == first.shape == rest.shape:
        return _of_same_shape(whole, first, rest, sizes)
    if whole.dim() and whole.size(0) == first.size(0) + rest.size(0) and whole.shape[1:] == first.shape[1:]:
        return {ROWS} if rest.shape[1:] == first.shape[1:] and _are_equal(torch.cat([first, rest]), whole) else set()
    return None


def dims_of_rows(three: List[torch.Tensor], sizes: Sizes) -> List[Tuple[int, int]]:
    """Return the dims that are as long as the rows, or a multiple, and this multiple."""
    dims = []
    for dim, (both, first, rest) in enumerate(zip(*(one.shape for one in three))):  # noqa: B905
        ratio = both // sizes.all_rows
        if ratio and (both, first, rest) == (ratio * sizes.all_rows, ratio * sizes.first, ratio * sizes.rest):
            dims.append((dim, ratio))
    return dims


def _of_same_shape(whole: torch.Tensor, first: torch.Tensor, rest: torch.Tensor, sizes: Sizes) -> Set[str]:
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


def _of_numbers(whole: float, first: float, rest: float, sizes: Sizes, *, is_half: bool = False) -> Set[str]:
    if not all(map(math.isfinite, (whole, first, rest))):
        return {SAME, MEAN}  # nothing contradicts a loss that is a mean
    candidates = {SUM: first + rest, MEAN: (first * sizes.first + rest * sizes.rest) / sizes.all_rows}
    if first == rest:
        candidates[SAME] = first
    tolerance = OF_HALF if is_half else _OF_NUMBERS
    size = max(abs(first), abs(rest))
    return {kind for kind, one in candidates.items() if abs(one - whole) <= tolerance * max(abs(whole), size) + 1e-12}


def _is_half(tensor: torch.Tensor) -> bool:
    return devices.is_autocast_enabled() or tensor.dtype in (torch.half, torch.bfloat16)


def _are_equal(own: torch.Tensor, expected: torch.Tensor) -> bool:
    return own.shape == expected.shape and not differs(own, expected)


def _common(own: torch.Tensor, other: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Cut two tensors to what they share: a part may be padded to its own longest sample."""
    for dim, (size, other_size) in enumerate(zip(own.shape, other.shape)):  # noqa: B905
        own, other = (one.narrow(dim, 0, min(size, other_size)) for one in (own, other))
    return own, other
