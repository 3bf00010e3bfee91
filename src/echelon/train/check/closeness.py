"""Decide whether two results are equal up to rounding, and describe the difference where they are not."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ..global_tensors.tensors import tensors_of
from ..wire import device as devices

OF_OUTPUTS = {torch.float64: 1e-6, torch.complex128: 1e-6, torch.float32: 2e-3, torch.complex64: 2e-3}
OF_GRADIENTS = {torch.float64: 1e-5, torch.float32: 1e-2}
OF_HALF = 5e-2
FEW = 100
"""The share of elements that may differ is 1 / FEW: rounding may decide an argmax differently."""
NEGLIGIBLE = 1e-7


class Difference(NamedTuple):
    """A difference: the name of the tensor, and the size of the difference."""

    what: str
    how: str


def difference_of(ours: object, theirs: object) -> Difference | None:
    """Return the first output that differs from that of the whole batch; None if all are equal up to rounding."""
    both = list(_leaves(ours, "output")), list(_leaves(theirs, "output"))
    if len(both[0]) != len(both[1]):
        return Difference(f"they are {len(both[0])}", f"and not {len(both[1])}")
    for (name, own), (_, expected) in zip(*both, strict=False):
        how = _how_tensors(own, expected) if isinstance(own, torch.Tensor) else _how_numbers(own, expected)
        if how:
            return Difference(name, how)
    return None


def difference_of_gradients(
    ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], names: Sequence[str]
) -> Difference | None:
    """Return the weight whose gradient differs most; None if rounding of the whole gradient explains the difference.

    A gradient that is zero but for rounding, such as that of a bias before BatchNorm, is compared with all others.
    """
    squares = [distance(one, other) ** 2 for one, other in zip(ours, theirs, strict=False)]
    scale = sum(float(doubles(other).pow(2).sum()) for other in theirs) ** 0.5
    tolerance = max((_tolerance(one.dtype, OF_GRADIENTS) for one in theirs), default=0.0)
    total = sum(squares) ** 0.5
    if not total > tolerance * scale + NEGLIGIBLE:
        return None
    place = squares.index(max(squares))
    return Difference(
        names[place],
        f"differ from those of the whole batch by {total / scale if scale else 1.0:.2g} of the norm of the "
        "whole gradient",
    )


def differs(own: torch.Tensor, expected: torch.Tensor) -> bool:
    """Say whether a tensor differs from another by more than rounding."""
    return bool(_how_tensors(own, expected))


def _leaves(value: object, name: str) -> Iterator[tuple[str, Any]]:
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


def _how_numbers(own: Any, expected: Any) -> str:
    if isinstance(expected, torch.Tensor) or abs(own - expected) <= OF_OUTPUTS[torch.float32] * abs(expected):
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
    mine, whole = _doubles(own), _doubles(expected)
    tolerance = _tolerance(expected.dtype, OF_OUTPUTS)
    distances, scale = (mine - whole).abs(), float(whole.norm())
    if not float(distances.norm()) > tolerance * scale + NEGLIGIBLE * whole.numel() ** 0.5:
        return ""
    size = whole.abs() + scale / whole.numel() ** 0.5
    num_other = int((distances > tolerance * size).sum())
    if num_other <= whole.numel() // FEW:
        return ""
    return "differs by %.2g" % (float(distances.norm()) / scale if scale else float(distances.norm()))


def _doubles(tensor: torch.Tensor) -> torch.Tensor:
    return torch.nan_to_num(doubles(tensor), nan=0.0, posinf=1e30, neginf=-1e30)


def _tolerance(dtype: torch.dtype, known: "dict[torch.dtype, float]") -> float:
    """Return the share of a norm that may be rounding."""
    if devices.is_autocast_enabled():
        return OF_HALF
    if dtype in (torch.half, torch.bfloat16):
        return OF_HALF
    if not (dtype.is_floating_point or dtype.is_complex):
        return NEGLIGIBLE
    if devices.may_use_tf32() and dtype != torch.float64:
        return 1e-2
    return known.get(dtype, 2e-3)


def doubles(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as real numbers in float64."""
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return tensor.detach().double()


def distance(tensor: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the norm of the difference of two tensors."""
    return float((doubles(tensor) - doubles(wanted)).norm())


def multiple(tensor: torch.Tensor, wanted: torch.Tensor, *, tolerance: float = 1e-3) -> float:
    """Return the factor by which a tensor is a multiple of another, up to `tolerance`; 0 if it is no multiple."""
    if tensor.shape != wanted.shape:
        return 0.0
    tensor, wanted = doubles(tensor), doubles(wanted)
    square = float((wanted * wanted).sum())
    factor = float((tensor * wanted).sum()) / square if square else 0.0
    return factor if distance(tensor, factor * wanted) <= tolerance * abs(factor) * square**0.5 else 0.0
