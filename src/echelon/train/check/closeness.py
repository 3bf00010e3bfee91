"""Decide whether two results are equal up to rounding, and describe the difference where they are not."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ..global_tensors.tensors import tensors_of
from ..wire import device as devices

NEGLIGIBLE = 1e-7
"""An ulp of float32: a number that is smaller is rounding, in any tensor; so is this share of a whole gradient."""
HALF = 5e-2
"""The share of a norm that may be rounding in half precision."""
FEW = 100
"""The share of elements that may differ is 1 / FEW: rounding may decide an argmax differently."""


class Shares(NamedTuple):
    """The shares of a norm that may be rounding, by the precision of the numbers."""

    double: float
    single: float
    tf32: float
    """Where a device may multiply float32 in fewer digits."""


OF_OUTPUTS = Shares(double=1e-6, single=2e-3, tf32=1e-2)
OF_GRADIENTS = Shares(double=1e-5, single=1e-2, tf32=1e-2)
OF_STEPS = Shares(double=1e-6, single=1e-3, tf32=1e-3)
"""Of the results of a whole step: the same samples, summed in another order."""
NEAR = OF_STEPS.single
"""What proves a cause: a tensor is another one, or a multiple of it, up to this share of its norm."""


class TensorDifference(NamedTuple):
    """A difference: the name of the tensor, and the size of the difference."""

    what: str
    how: str


def difference_of(ours: object, theirs: object) -> TensorDifference | None:
    """Return the first output that differs from that of the whole batch; None if all are equal up to rounding."""
    both = list(_leaves(ours, "output")), list(_leaves(theirs, "output"))
    if len(both[0]) != len(both[1]):
        return TensorDifference(f"they are {len(both[0])}", f"and not {len(both[1])}")
    for (name, own), (_, expected) in zip(*both, strict=False):
        how = _how_tensors(own, expected) if isinstance(own, torch.Tensor) else _how_numbers(own, expected)
        if how:
            return TensorDifference(name, how)
    return None


def difference_of_gradients(
    ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], names: Sequence[str]
) -> TensorDifference | None:
    """Return the weight whose gradient differs most; None if rounding of the whole gradient explains the difference.

    A gradient that is zero but for rounding, such as that of a bias before BatchNorm, is compared with all others.
    """
    squares = [distance(one, other) ** 2 for one, other in zip(ours, theirs, strict=False)]
    scale = sum(float(doubles(other).pow(2).sum()) for other in theirs) ** 0.5
    tolerance = max((share_of(one.dtype, OF_GRADIENTS) for one in theirs), default=0.0)
    total = sum(squares) ** 0.5
    if not total > tolerance * scale + NEGLIGIBLE:
        return None
    place = squares.index(max(squares))
    return TensorDifference(
        names[place],
        f"differ from those of the whole batch by {total / scale if scale else 1.0:.2g} of the norm of the "
        "whole gradient",
    )


def differs(own: torch.Tensor, expected: torch.Tensor) -> bool:
    """Say whether a tensor differs from another by more than rounding."""
    return bool(_how_tensors(own, expected))


def _leaves(value: object, name: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, (torch.Tensor, bool, int, float)):
        yield name, value
    elif isinstance(value, (tuple, list)):
        for place, entry in enumerate(value):
            yield from _leaves(entry, f"{name}[{place}]")
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from _leaves(entry, f"{name}[{key!r}]")
    else:
        for tensor in tensors_of(value):
            yield f"a tensor of {name}", tensor


def _how_numbers(own: object, expected: Any) -> str:
    if isinstance(expected, torch.Tensor) or abs(own - expected) <= OF_OUTPUTS.single * abs(expected):
        return ""
    return f"is {own:.6g} for the rows of rank 0, but {expected:.6g} for the whole batch"


def _how_tensors(own: torch.Tensor, expected: object) -> str:
    if not isinstance(expected, torch.Tensor):
        return ""
    if own.shape != expected.shape:
        return (
            f"has the shape {list(own.shape)} for the rows of the ranks, but {list(expected.shape)} for the whole batch"
        )
    if not own.numel() or own.layout != torch.strided or own.is_quantized:
        return ""
    if is_equal(own, expected, OF_OUTPUTS):
        return ""
    mine, whole = _numbers(own), _numbers(expected)
    distances, scale = (mine - whole).abs(), float(whole.norm())
    size = whole.abs() + scale / whole.numel() ** 0.5
    num_other = int((distances > share_of(expected.dtype, OF_OUTPUTS) * size).sum())
    if num_other <= whole.numel() // FEW:
        return ""
    return f"differs by {float(distances.norm()) / (scale or 1.0):.2g}"


def is_equal(own: torch.Tensor, expected: torch.Tensor, of: Shares, *, is_half: bool = False) -> bool:
    """Say whether a tensor is another one of its shape but for rounding."""
    mine, whole = _numbers(own), _numbers(expected)
    share = share_of(expected.dtype, of, is_half=is_half)
    return not distance(mine, whole) > share * float(whole.norm()) + NEGLIGIBLE * whole.numel() ** 0.5


def share_of(dtype: torch.dtype, of: Shares, *, is_half: bool = False) -> float:
    """Return the share of a norm that may be rounding; numbers that are not rounded have next to none."""
    if is_half or devices.is_autocast_enabled() or dtype in (torch.half, torch.bfloat16):
        return HALF
    if not (dtype.is_floating_point or dtype.is_complex):
        return NEGLIGIBLE
    if dtype in (torch.float64, torch.complex128):
        return of.double
    return of.tf32 if devices.may_use_tf32() else of.single


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(doubles(tensor), nan=0.0, posinf=1e30, neginf=-1e30)


def doubles(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as real numbers in float64."""
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return tensor.detach().double()


def distance(tensor: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the norm of the difference of two tensors."""
    return float((doubles(tensor) - doubles(wanted)).norm())


def multiple(tensor: torch.Tensor, wanted: torch.Tensor, *, tolerance: float = NEAR) -> float:
    """Return the factor by which a tensor is a multiple of another, up to `tolerance`; 0 if it is no multiple."""
    if tensor.shape != wanted.shape:
        return 0.0
    tensor, wanted = doubles(tensor), doubles(wanted)
    square = float((wanted * wanted).sum())
    factor = float((tensor * wanted).sum()) / square if square else 0.0
    return factor if distance(tensor, factor * wanted) <= tolerance * abs(factor) * square**0.5 else 0.0


def is_near(tensor: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Say whether a tensor is so near to another that this proves a cause."""
    return distance(tensor, wanted) <= NEAR * max(float(doubles(wanted).norm()), 1e-30)


def apart(wanted: torch.Tensor, tensor: torch.Tensor | None) -> float:
    """Return the distance of two tensors relative to the norm of the first; two NaN are equal."""
    if tensor is None or wanted.shape != tensor.shape:
        return float("inf")
    wanted, tensor = doubles(wanted), doubles(tensor)
    if torch.equal(torch.nan_to_num(wanted, nan=0.5), torch.nan_to_num(tensor, nan=0.5)):
        return 0.0
    relative = distance(tensor, wanted) / (float(wanted.norm()) or 1.0)
    return relative if relative == relative else float("inf")
