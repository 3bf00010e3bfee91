"""Rules for functions that reduce along a dim, and for functions that treat each row by itself."""

from typing import Any

import torch

from . import exchange
from .elements import is_in_place, to_local, wrap_rows
from .functions import ALONG
from .tensors import Args, GlobalTensor, Kwargs, Partial, Sharded, map_tensors, own_part, tensors_of


def along(func: Any, args: Args, kwargs: Kwargs) -> Any:
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


def rowwise(func: Any, args: Args, kwargs: Kwargs) -> Any:
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


def _sum(name: str, tensor: Sharded, args: Args, kwargs: Kwargs, dims: Any) -> Any:
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


def squeeze(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Squeeze all dims but that of the rows: a rank may have a single row where the batch has several."""
    if len(args) > 1 or kwargs or not isinstance(args[0], Sharded):
        return along(func, args, kwargs)
    tensor = args[0]
    dims = tuple(at for at, size in enumerate(tensor.shape) if size == 1 and at)
    return wrap_rows(tensor.local.squeeze(dims), tensor) if tensor.size(0) > 1 and not tensor.dim_of_rows else None


def multiply(func: Any, args: Args, kwargs: Kwargs) -> Any:
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


def of_rows(func: Any, args: Args, kwargs: Kwargs) -> Any:
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


def draw(func: Any, args: Args, kwargs: Kwargs) -> Any:
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
