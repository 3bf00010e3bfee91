"""Signatures: a few numbers that represent a rank's values. Two ranks with equal signatures have equal batches."""

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..global_tensors.pieces import Pieces
from ..global_tensors.tensors import GlobalTensor, Sharded, tensors_of
from ..wire.gather import is_sharded
from ..wire.world import World

TOLERANCE = 1e-5
"""The relative difference that rounding may make; two batches differ by far more, by about 1 / √(elements)."""
NUM_BATCHES = 10
"""The number of batches that are compared: batches that each rank draws for itself differ from the first on."""
MOST_ELEMENTS = 1 << 15
"""The most elements of a tensor that count; a larger tensor is sampled evenly. They take 0.1 ms on a core."""
_LARGEST = 1e30  # a mask's substitute for infinity carries no information, and would hide all other values
_GOLDEN = 0.6180339887498949
_EXACT = 1 << 40  # sums of several signatures stay whole numbers in a double


class Signature(NamedTuple):
    """Numbers that must be equal on all ranks. They stay on the device, because a read would wait for it."""

    exact: Any
    """A number that is equal to the last bit: from shapes, names, indices, whole numbers."""
    total: Any
    """A number that is equal up to rounding."""
    size: Any
    """The largest possible `total`, which scales the rounding."""


NOTHING = Signature(0.0, 0.0, 0.0)


def of_text(text: str) -> Signature:
    return Signature(float(zlib.crc32(text.encode())), 0.0, 0.0)


def of_indices(indices: Any) -> Signature:
    """Return the signature of a batch's samples; if the keys are not plain values, only their number counts."""
    are_plain = all(type(one) in (int, str) for one in indices)
    return of_text(repr(indices) if are_plain else str(len(indices)))


@torch.no_grad()
def of_tensors(tensors: Sequence[torch.Tensor]) -> Signature:
    """Return the signature of plain tensors that every rank has whole."""
    result = NOTHING
    for number, tensor in enumerate(tensors, 1):
        if is_plain(tensor):
            result = added(result, _of_tensor(tensor), number)
    return result


def is_plain(tensor: torch.Tensor) -> bool:
    """Say whether a tensor has elements in this rank's memory that can be read one by one."""
    return not (
        isinstance(tensor, GlobalTensor)
        or is_sharded(tensor)
        or tensor.is_nested
        or tensor.is_quantized
        or tensor.layout != torch.strided
        or tensor.is_meta
        or not tensor.numel()
    )


def added(first: Signature, second: Signature, factor: int = 1) -> Signature:
    """Return the sum of two signatures, the second times `factor`; different factors make their order count."""
    return Signature(
        first.exact + second.exact * factor, first.total + second.total * factor, first.size + second.size * factor
    )


def numbers(signature: Signature, device: torch.device) -> torch.Tensor:
    """Return the numbers that ranks exchange; their maximum shows whether all ranks have the same."""
    exact, total, size = (
        number.to(device, torch.float64)
        if isinstance(number, torch.Tensor)
        else torch.tensor(number, dtype=torch.float64, device=device)
        for number in signature
    )
    return torch.stack([exact, -exact, total, -total, size])


def are_equal(most: list[float]) -> bool:
    """Say from the maxima over ranks whether all ranks had the same `numbers`."""
    exact, least_exact, total, least_total, size = most
    return exact == -least_exact and total + least_total <= TOLERANCE * size


@torch.no_grad()
def rank_with_other_batch(batch: object, world: World) -> int:
    """Return the first rank whose batch differs from rank 0's; 0 if all batches are equal. All ranks must call this."""
    if world.size == 1:
        return 0
    signed = added(of_tensors(tensors_of(batch)), of_text(text_of_shapes(batch)))
    own = numbers(signed, world.device)[::2].contiguous()  # without the negative numbers
    gathered = [torch.empty_like(own) for _ in range(world.size)]
    dist.all_gather(gathered, own)
    every = [torch.stack([exact, -exact, total, -total, size]) for exact, total, size in gathered]
    differ = [not are_equal(torch.maximum(every[0], other).tolist()) for other in every]
    return differ.index(True) if True in differ else 0


def text_of_shapes(value: object) -> str:
    """Return the shapes of all tensors in a value, without the dims of shared tensors that ranks may have padded."""
    return ", ".join(f"{_text_of_shape(one)} {str(one.dtype)[6:]}" for one in tensors_of(value))


def _text_of_shape(tensor: torch.Tensor) -> str:
    first = tensor.parts[0] if isinstance(tensor, Pieces) else tensor
    if not isinstance(first, Sharded):
        return str(list(tensor.shape))
    return "[{}]".format(
        ", ".join(str(sum(first.rows)) if dim == first.dim_of_rows else "…" for dim in range(first.dim()))
    )


def _of_tensor(tensor: torch.Tensor) -> Signature:
    flat = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.detach()).reshape(-1)
    if flat.numel() > MOST_ELEMENTS:
        flat = flat[:: -(-flat.numel() // MOST_ELEMENTS)]
    weights = _weights(flat.numel(), flat.device)
    if not flat.is_floating_point():
        return Signature(((flat.long() * (weights * (1 << 20)).long()).sum() % _EXACT).double(), 0.0, 0.0)
    values = torch.nan_to_num(flat.double(), nan=_GOLDEN, posinf=1.0, neginf=-1.0)
    values = values.clamp(-_LARGEST, _LARGEST)
    amount = values.abs().sum()
    mean = torch.log1p(amount / values.numel())
    return Signature(0.0, (values * weights).sum() / amount.clamp(min=1 / _LARGEST) + mean, 1 + mean)


@lru_cache(maxsize=32)
def _weights(number: int, device: torch.device) -> torch.Tensor:
    """Return pseudorandom weights from -1 to 1, which make the order of elements count."""
    places = torch.arange(1, number + 1, dtype=torch.float64, device=device)
    return (places * _GOLDEN).frac() * 2 - 1
