"""Rules for functions that reshape rows, index them, or concatenate them."""

from typing import Any, List, Optional

import torch

from . import exchange
from .elements import leader, to_local, wrap_rows
from .tensors import Args, GlobalTensor, Kwargs, Sharded


def reshape(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Reshape the rows, if no row of the result has elements of two ranks."""
    tensor = args[0]
    sizes = _new_sizes(func.__name__, tensor, args[1:], kwargs)
    if not isinstance(tensor, Sharded) or tensor.dim_of_rows or not sizes or not tensor.numel() or tensor.size(0) == 1:
        return None
    most = tensor.size(0)
    if any(max(one, 1) * sizes[0] % most for one in tensor.rows):
        return None
    rows = [one * sizes[0] // most for one in tensor.rows]
    local = tensor.local.reshape(tensor.local.size(0) * sizes[0] // most, *sizes[1:])
    return Sharded(local, tensor.world, rows)


def _new_sizes(name: str, tensor: Any, words: Args, kwargs: Kwargs) -> Optional[List[int]]:
    """Return the requested sizes, with -1 replaced by its value."""
    if name == "flatten":
        start = kwargs.get("start_dim", words[0] if words else 0) % tensor.dim()
        end = kwargs.get("end_dim", words[1] if len(words) > 1 else -1) % tensor.dim()
        shape = list(tensor.shape)
        merged = 1
        for size in shape[start : end + 1]:
            merged *= size
        return [*shape[:start], merged, *shape[end + 1 :]]
    if name.endswith("_as"):
        return list(words[0].shape)
    wanted = kwargs.get("shape", kwargs.get("size", words[0] if len(words) == 1 else words))
    sizes = [int(wanted)] if isinstance(wanted, int) else list(wanted) if isinstance(wanted, (tuple, list)) else []
    if not all(isinstance(one, int) for one in sizes):
        return None
    if -1 in sizes:
        known = 1
        for size in sizes:
            known *= 1 if size == -1 else size
        sizes[sizes.index(-1)] = tensor.numel() // max(known, 1)
    return sizes


def permute(func: Any, args: Args, kwargs: Kwargs) -> Any:
    tensor = args[0]
    if not isinstance(tensor, Sharded) or tensor.dim_of_rows or kwargs:
        return None
    places = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
    if func.__name__ == "permute":
        keeps = bool(places) and places[0] % tensor.dim() == 0
    else:
        keeps = all(isinstance(one, int) and one % tensor.dim() for one in places) and bool(places)
    return wrap_rows(func(tensor.local, *args[1:]), tensor) if keeps else None


def get_item(_func: Any, args: Args, _kwargs: Kwargs) -> Any:
    """Take the same part of every row, or the rows that a mask names."""
    tensor, key = args
    if not isinstance(tensor, Sharded) or tensor.dim_of_rows or tensor.size(0) == 1:
        return None
    if isinstance(key, Sharded) and key.dtype == torch.bool and key.rows == tensor.rows and not key.dim_of_rows:
        local = tensor.counted[key.counted]
        rows = exchange.counts(local.size(0), tensor.world)
        return Sharded(local if local.size(0) else _stand_in(tensor.local, key.dim()), tensor.world, rows)
    keys = key if isinstance(key, tuple) else (key,)
    if len(keys) < 2 or any(isinstance(one, (GlobalTensor, list)) for one in keys):
        return None
    starts_with_all = keys[0] == slice(None) if isinstance(keys[0], slice) else keys[0] is Ellipsis
    num_named = sum(one is not None and one is not Ellipsis for one in keys)
    num_tensors = sum(isinstance(one, torch.Tensor) for one in keys)
    if not starts_with_all or num_named > tensor.dim() - (keys[0] is Ellipsis) or num_tensors > 1:
        return None
    return wrap_rows(tensor.local[key], tensor)


def _stand_in(local: torch.Tensor, num_masked_dims: int) -> torch.Tensor:
    """Return a placeholder row where a mask selects none, so that every rank takes part in backward()."""
    return local.flatten(0, num_masked_dims - 1)[:1]


def concatenate(func: Any, args: Args, kwargs: Kwargs) -> Any:
    entries = args[0] if args else kwargs["tensors"]
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    are_alike = all(one.dim() == entries[0].dim() for one in entries)
    lead = leader(list(entries)) if are_alike and any(isinstance(one, Sharded) for one in entries) else None
    more = func.__name__ == "stack"
    if lead is None or lead.dim_of_rows or dim % (lead.dim() + more) == 0 or "out" in kwargs:
        return None
    if any(one.size(0) != lead.size(0) for one in entries):
        return None
    return wrap_rows(func(to_local(list(entries), lead), dim=dim), lead)
