"""Rules for elementwise functions of rows and of totals, and the alignment of the rows of several tensors."""

from typing import Any

import torch

from ..function_types import Args, Function, Kwargs
from ..wire import exchange
from .functions import IN_PLACE_OPERATORS, LINEAR
from .tensors import GlobalTensor, Partial, Sharded, entered, map_tensors, own_part, tensors_of


def is_in_place(name: str) -> bool:
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name in IN_PLACE_OPERATORS


def like(tensor: Any, local: torch.Tensor) -> GlobalTensor:
    if isinstance(tensor, Partial):
        return Partial(local, tensor.world, tensor.fraction)
    return Sharded(local, tensor.world, tensor.rows, tensor.dim_of_rows)


def pointwise(func: Function, args: Args, kwargs: Kwargs) -> object:
    """Compute this rank's rows by themselves, if the rows of all tensors line up."""
    tensors = tensors_of(args, kwargs)
    if not any(isinstance(one, Sharded) for one in tensors):
        return _of_totals(func, args, kwargs)
    if is_in_place(func.__name__) and not isinstance(args[0], Sharded):
        return None
    if func.__name__ == "where" and len(args) + len(kwargs) == 1:  # returns indices
        return None
    lead = leader(tensors)
    if lead is None:
        return None
    local = to_local((args, kwargs), lead)
    result = func(*local[0], **local[1])
    if result is (local[0][0] if local[0] else None) and isinstance(args[0], GlobalTensor):  # in place
        return args[0]
    return wrap_rows(result, lead)


def leader(tensors: list[torch.Tensor]) -> Sharded | None:
    """Return the sharded tensor whose rows all other tensors have too; None where the rows do not line up."""
    sharded_tensors = [one for one in tensors if isinstance(one, Sharded)]
    most = max(one.dim() for one in tensors)
    lead = sharded_tensors[0]
    if len(sharded_tensors) == 1 and len(tensors) == 1:
        return lead
    if lead.size(0) == 1 or any(
        tensor.rows != lead.rows or tensor.dim_of_rows or tensor.dim() != most for tensor in sharded_tensors
    ):
        return None
    plain_tensors = [one for one in tensors if not isinstance(one, Sharded) and one.dim() == most]
    return None if any(one.size(0) not in (1, lead.size(0)) for one in plain_tensors) else lead


def to_local(value: object, lead: Sharded) -> Any:
    """Return the value with this rank's rows in place of each tensor of all rows."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, Sharded):
            return tensor.local
        whole = entered(tensor, lead.world)
        has_rows = whole.dim() == lead.dim() and whole.size(0) == lead.size(0)
        return own_part(whole, lead.world.rank, lead.rows) if has_rows and whole.dim() else whole

    return map_tensors(value, change)


def wrap_rows(result: object, lead: Sharded) -> object:
    """Return the computed rows as global tensors with the leading tensor's rows."""
    return map_tensors(result, lambda local: Sharded(local, lead.world, lead.rows, lead.dim_of_rows))


def _of_totals(func: Function, args: Args, kwargs: Kwargs) -> object:
    """Compute with this rank's parts of totals, if the function is linear in them."""
    name = func.__name__
    tensors = tensors_of(args, kwargs)
    totals = [one for one in tensors if isinstance(one, Partial)]
    if name.strip("_") not in LINEAR or is_in_place(name) or kwargs.get("rounding_mode") or tensors_of(kwargs):
        return None
    kind = LINEAR[name.strip("_")]
    if kind == "unary" and len(tensors) == 1:
        local = func(totals[0].unsettled, *args[1:], **kwargs)
        rounds = totals[0].dtype.is_floating_point and not local.dtype.is_floating_point
        return None if rounds else _multiple(totals[0], local)
    if kind == "quotient" and args[0] is not totals[0]:
        return None
    if kind in ("product", "quotient") and len(totals) == 1:
        factors = [one for one in tensors if one is not totals[0]]
        if all(one.dim() == 0 or one.shape == totals[0].shape for one in factors):
            world = totals[0].world
            parts = map_tensors(args, lambda one: one.unsettled if one is totals[0] else exchange.enter(one, world))
            return _multiple(totals[0], func(*parts, **kwargs))
    if kind == "sum" and len(args) == 2 and not kwargs and all(one.shape == totals[0].shape for one in tensors):
        fraction = totals[0].fraction
        return like(totals[0], func(*(_part_of(one, totals[0], fraction) for one in args)))
    return None


def _multiple(total: Partial, unsettled: torch.Tensor) -> Partial:
    return Partial(unsettled, total.world, total.fraction, total.doubt)


def _part_of(value: Any, total: Partial, fraction: float) -> Any:
    """Return this rank's addend of a sum: a fraction of a value that all ranks have, or its part of a total."""
    if isinstance(value, Partial):
        return value.local
    if isinstance(value, torch.Tensor):
        value = exchange.enter(value, total.world)
    if isinstance(value, float) or total.dtype.is_floating_point:
        return value * fraction
    return value if total.world.rank == 0 else value * 0
