"""Rules for functions that reduce along a dim, and for functions that treat each row by itself."""

from typing import Any

import torch

from ..function_types import Args, Function, Kwargs
from ..wire import exchange
from .elements import is_in_place, leader, to_local, wrap_rows
from .functions import ALONG
from .tensors import GlobalTensor, Partial, Sharded, map_tensors, own_part, tensors_of


def along(func: Function, args: Args, kwargs: Kwargs) -> object:
    """Compute along a dim other than the dim of the rows; a sum or mean over the rows becomes a part of a total."""
    name = func.__name__
    tensor = args[0] if args else kwargs.get("input")
    if not isinstance(tensor, Sharded) or tensor.dim_of_rows:
        return None
    place, default, more_dims = ALONG[name]
    dim = kwargs.get("dim", kwargs.get("axis", args[place] if len(args) > place else default))
    dims = [dim] if isinstance(dim, int) else dim
    if name == "flip" and len(args) > 2:
        dims = args[1:]
    if isinstance(dims, (list, tuple)) and all(isinstance(one, int) for one in dims) and dims:
        if all(one % (tensor.dim() + more_dims) for one in dims):
            return rowwise(func, args, kwargs)
    elif dims is not None:
        return None
    if name in ("sum", "mean"):
        return _sum(name, tensor, args, kwargs, dims)
    return None


def rowwise(func: Function, args: Args, kwargs: Kwargs) -> object:
    """Compute each row by itself, together with the same row of the other arguments that have as many rows."""
    tensors = tensors_of(args, kwargs)
    lead = next(one for one in tensors if isinstance(one, Sharded))
    if lead.size(0) == 1 or any(isinstance(one, GlobalTensor) and not _has_rows_of(one, lead) for one in tensors):
        return None
    local = to_local((args, kwargs), lead)
    return wrap_rows(func(*local[0], **local[1]), lead)


def _has_rows_of(tensor: GlobalTensor, lead: Sharded) -> bool:
    return (
        isinstance(tensor, Sharded)
        and tensor.rows == lead.rows
        and tensor.dim() == lead.dim()
        and not tensor.dim_of_rows
    )


def _sum(name: str, tensor: Sharded, args: Args, kwargs: Kwargs, dims: Any) -> Partial | None:
    if name == "mean" and not (kwargs.get("dtype") or tensor.dtype).is_floating_point:
        return None
    fraction = tensor.rows[tensor.world.rank] / sum(tensor.rows)
    counted = tensor.counted
    part = torch.sum(counted, **_dims(dims), **{key: kwargs[key] for key in ("keepdim", "dtype") if key in kwargs})
    if len(args) > 2 and "keepdim" not in kwargs:
        part = torch.sum(counted, **_dims(dims), keepdim=args[2])
    if name == "mean":
        over = [one % tensor.dim() for one in dims] if dims else range(tensor.dim())
        count = 1
        for dim in over:
            count *= tensor.size(dim)
        part = part / count
    return Partial(part, tensor.world, fraction)


def _dims(dims: Any) -> Kwargs:
    return {"dim": tuple(dims)} if dims else {}


def squeeze(func: Function, args: Args, kwargs: Kwargs) -> object:
    """Squeeze all dims but that of the rows: a rank may have a single row where the batch has several."""
    if len(args) > 1 or kwargs or not isinstance(args[0], Sharded):
        return along(func, args, kwargs)
    tensor = args[0]
    dims = tuple(at for at, size in enumerate(tensor.shape) if size == 1 and at)
    return wrap_rows(tensor.local.squeeze(dims), tensor) if tensor.size(0) > 1 and not tensor.dim_of_rows else None


def multiply(func: Function, args: Args, kwargs: Kwargs) -> object:
    """Multiply the rows by a matrix that all ranks have."""
    rows, matrix = args[0], args[1] if len(args) > 1 else kwargs.get("weight", kwargs.get("other", kwargs.get("mat2")))
    if not isinstance(rows, Sharded) or not isinstance(matrix, torch.Tensor) or rows.dim() < 2:
        return None
    if isinstance(matrix, Sharded):
        return rowwise(func, args, kwargs) if rows.dim() > 2 and matrix.dim() > 2 else None
    if (
        isinstance(matrix, GlobalTensor)
        or matrix.dim() > 2
        or rows.dim_of_rows
        or any(isinstance(one, GlobalTensor) for one in args[2:])
    ):
        return None
    local = map_tensors((args[1:], kwargs), lambda one: exchange.enter(one, rows.world))
    return wrap_rows(func(rows.local, *local[0], **local[1]), rows)


def of_rows(func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Compute a function that treats each row by itself, such as layer_norm or embedding."""
    tensor = args[0] if args else None
    if (
        not isinstance(tensor, Sharded)
        or tensor.dim_of_rows
        or any(isinstance(one, GlobalTensor) for one in tensors_of(args[1:], kwargs))
    ):
        return None
    if func.__name__ == "one_hot" and (kwargs.get("num_classes") or (*args, -1)[1]) < 0:
        return None
    if func.__name__ in ("layer_norm", "rms_norm") and len(args[1]) >= tensor.dim():
        return None
    local = map_tensors((args[1:], kwargs), lambda one: exchange.enter(one, tensor.world))
    return wrap_rows(func(tensor.local, *local[0], **local[1]), tensor)


def draw(func: Function, args: Args, kwargs: Kwargs) -> Any:
    """Draw random numbers for all rows, as one device does, and keep this rank's rows."""
    tensor = args[0]
    if not isinstance(tensor, Sharded) or any(isinstance(one, GlobalTensor) for one in tensors_of(args[1:], kwargs)):
        return None
    whole = func(torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device), *args[1:], **kwargs)
    local = own_part(whole, tensor.world.rank, tensor.rows, tensor.dim_of_rows)
    if is_in_place(func.__name__):
        tensor.local.copy_(local)
        return tensor
    return wrap_rows(local, tensor)


def reshape(func: Function, args: Args, kwargs: Kwargs) -> object:
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


def _new_sizes(name: str, tensor: Any, words: Args, kwargs: Kwargs) -> list[int] | None:
    """Return the requested sizes, with -1 replaced by its value."""
    if name == "flatten":
        if not tensor.dim():
            return [1]
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


def permute(func: Function, args: Args, kwargs: Kwargs) -> object:
    tensor = args[0]
    if not isinstance(tensor, Sharded) or tensor.dim_of_rows or kwargs:
        return None
    places = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
    if func.__name__ == "permute":
        keeps = bool(places) and places[0] % tensor.dim() == 0
    else:
        keeps = all(isinstance(one, int) and one % tensor.dim() for one in places) and bool(places)
    return wrap_rows(func(tensor.local, *args[1:]), tensor) if keeps else None


def get_item(_func: Function, args: Args, _kwargs: Kwargs) -> object:
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


def concatenate(func: Function, args: Args, kwargs: Kwargs) -> object:
    entries = args[0] if args else kwargs["tensors"]
    dim: Any = kwargs.get("dim", args[1] if len(args) > 1 else 0)
    are_alike = all(one.dim() == entries[0].dim() for one in entries)
    lead = leader(list(entries)) if are_alike and any(isinstance(one, Sharded) for one in entries) else None
    more = func.__name__ == "stack"
    if lead is None or lead.dim_of_rows or dim % (lead.dim() + more) == 0 or "out" in kwargs:
        return None
    if any(one.size(0) != lead.size(0) for one in entries):
        return None
    return wrap_rows(func(to_local(list(entries), lead), dim=dim), lead)
