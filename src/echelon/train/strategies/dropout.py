"""Dropout of tensors that are cut: every rank draws numbers for the whole tensor, and keeps those of its part.

PyTorch has no random numbers for DTensors on a CPU. If all ranks draw the same numbers, they drop the same elements as
one device. The caller of `install` lets all ranks draw the same numbers.
"""

import math
from typing import Any

import torch
from torch import nn

from .. import patches

_installed: list[Any] = []


def is_installed() -> bool:
    return bool(_installed)


def install() -> None:
    if _installed:
        return
    from torch.distributed.tensor import DTensor

    original, attention = nn.functional.dropout, nn.functional.scaled_dot_product_attention
    _installed.append(original)

    def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> object:  # noqa: A002
        if not (isinstance(input, DTensor) and training and p):
            return original(input, p, training, inplace)
        whole = _without_sums(input)
        result = whole * _spread(_noise(whole.shape, p, whole, whole.stride()), whole)
        return input.copy_(result) if inplace else result

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, **options: Any,
    ) -> object:  # fmt: skip
        if not (isinstance(query, DTensor) and dropout_p):
            return attention(query, key, value, attn_mask, dropout_p, is_causal, **options)
        return _attend_to_cut(query, key, value, attn_mask, dropout_p, is_causal, options)

    why = "Dropout of a tensor that is cut drops what one device drops."
    patches.replace(nn.functional, "dropout", dropout, why=why)
    patches.replace(nn.functional, "scaled_dot_product_attention", attend, why=why)


def _noise(shape: Any, p: float, like: torch.Tensor, stride: Any = ()) -> torch.Tensor:
    """Return the dropout factor of each element of a whole tensor; numbers are drawn in the order of its memory."""
    ones = torch.ones(tuple(shape), dtype=like.dtype, device=like.device)
    if stride:
        place = torch.empty_like(torch.empty_strided(tuple(shape), tuple(stride), device="meta"))
        ones = torch.empty_strided(place.shape, place.stride(), dtype=like.dtype, device=like.device).fill_(1.0)
    result: torch.Tensor = _installed[0](ones, p, True)
    return result


def _spread(whole: torch.Tensor, like: Any) -> Any:
    from torch.distributed.tensor import distribute_tensor

    from .versions import unsent

    return distribute_tensor(whole, like.device_mesh, like.placements, **unsent(distribute_tensor))


def _without_sums(tensor: Any) -> Any:
    from torch.distributed.tensor import Replicate

    if not any(one.is_partial() for one in tensor.placements):
        return tensor
    return tensor.redistribute(placements=[Replicate() if one.is_partial() else one for one in tensor.placements])


def _attend_to_cut(query: Any, key: Any, value: Any, mask: Any, p: float, is_causal: bool, options: Any) -> object:
    from torch.distributed.tensor import DTensor

    query = _without_sums(query)
    key, value = (one.redistribute(placements=query.placements) for one in (key, value))
    shape = (*query.shape[:-1], key.size(-2))
    noise = _spread(_noise(shape, p, query), query).to_local()
    if mask is not None:
        whole = mask.full_tensor() if isinstance(mask, DTensor) else mask
        mask = _spread(whole.expand(shape), query).to_local()
    own = (query.to_local(), key.to_local(), value.to_local())
    result = attend_with(noise, *own, mask, first=0 if is_causal else None, **options)
    return DTensor.from_local(result, query.device_mesh, query.placements, run_check=False)


def attend_with(
    noise: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
    *, first: int | None, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Compute attention without a fused kernel; it is causal if `first`, the position of the first query, is given."""
    if enable_gqa:
        key, value = (one.repeat_interleave(query.size(-3) // one.size(-3), -3) for one in (key, value))
    scale = 1 / math.sqrt(query.size(-1)) if scale is None else scale
    scores = query @ key.transpose(-2, -1) * scale
    if first is not None:
        rows = torch.arange(first, first + query.size(-2), device=query.device)[:, None]
        mask = rows >= torch.arange(key.size(-2), device=query.device)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return (scores.softmax(-1) * noise) @ value


def rows_of_noise(query: Any, keys: int, p: float) -> tuple[torch.Tensor, int]:
    """Return the dropout factors of this rank's queries, which are cut by position, and the first query's position."""
    own = query.to_local().size(-2)
    first = query.device_mesh.get_local_rank() * own
    noise = _noise((*query.shape[:-1], keys), p, query)
    return noise.narrow(-2, first, own), first
