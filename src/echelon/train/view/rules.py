"""What becomes of a view when PyTorch is called with it.

Rows stay with their ranks where a function treats each row by itself, sums over rows become parts of a total, and
everything else is computed from the whole, on every rank alike: slower, and right.
"""

from functools import partial
from typing import Any, Callable, Dict

import torch

from . import along, below, elements, losses, pieces, shapes, signs
from .elements import is_in_place, like
from .functions import ALONG, DRAWS, LOCAL_ATTRIBUTES, POINTWISE, READS, RESHAPES
from .tensors import Args, Kwargs, Partial, Sharded, View, map_tensors

Rule = Callable[[Any, Args, Kwargs], Any]


def apply(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Compute a function of which some argument is a view."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__"):
        return _attribute(func, name, args)
    rule = None if "out" in kwargs else _RULES.get(name)
    result = None if rule is None else _by_rule(rule, func, args, kwargs)
    result = _with_whole(func, name, args, kwargs) if result is None else result
    if is_in_place(name) and args and getattr(args[0], "origin", None) is not None:
        gradient, factor = args[0].origin
        gradient.copy_(args[0].local * factor)
    return result


def _by_rule(rule: Rule, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Compute by a rule, of each shard by itself where a process has several; None where only the whole will do."""
    lead = pieces.first_of(args, kwargs)
    if lead is None or rule is _own_metadata:
        result = rule(func, args, kwargs)
        if result is not None:
            signs.carry(func.__name__, args[0] if args else None, result)
        return result
    if rule is losses.rule:
        found = losses.rule_of_pieces(func, pieces.apart((args, kwargs), len(lead.parts)))
        return None if found is None else pieces.of(found)
    return pieces.each(partial(_by_rule, rule, func), args, kwargs, lead, draws=rule is along.draw)


def _with_whole(func: Any, name: str, args: Args, kwargs: Kwargs) -> Any:
    """Put the parts together and compute with the whole."""
    changes_first = isinstance(args[0], View) if args and is_in_place(name) else False
    with torch.set_grad_enabled(torch.is_grad_enabled() and name not in READS):
        whole_args, whole_kwargs = map_tensors((args, kwargs), _whole)
        result = func(*whole_args, **whole_kwargs)
    if changes_first:
        args[0].put_whole(whole_args[0])
        return args[0] if result is whole_args[0] else result
    return map_tensors(result, _marked)


def compute_whole(func: Any, args: Args) -> Any:
    """Compute a function with whole tensors in place of views."""
    return map_tensors(func(*map_tensors(args, _whole)), _marked)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.whole() if isinstance(tensor, View) else tensor


def _marked(tensor: torch.Tensor) -> torch.Tensor:
    """Remember of a plain tensor that it was made of whole batches: a model may share its rows again."""
    tensor.comes_from_batches = True  # type: ignore[attr-defined]
    return tensor


def _attribute(func: Any, name: str, args: Args) -> Any:
    """Read or set an attribute: shape, dtype and device are the view's own, what concerns gradients is its part's."""
    view: Any = args[0]
    attribute = getattr(func.__self__, "__name__", "")
    if isinstance(view, pieces.Pieces) and attribute in ("grad", "data", "requires_grad"):
        return pieces.of([_attribute(func, name, mine) for mine in pieces.apart(args, len(view.parts))])
    if name == "__set__":
        _set_attribute(func, view, attribute, args)
        return None
    if attribute == "grad":
        gradient = view.local.grad
        factor = 1 if view.world.is_exact else view.world.size
        if gradient is None:
            return None
        seen: Any = like(view, gradient / factor)
        seen.origin = (gradient, factor)
        return seen
    if attribute == "data":
        return like(view, view.local.data)
    if attribute in LOCAL_ATTRIBUTES:
        return getattr(view.unsettled if isinstance(view, Partial) else view.local, attribute)
    if attribute in ("T", "mT", "H", "mH", "real", "imag"):
        keeps_rows = (attribute in ("mT", "mH") and view.dim() > 2) or attribute in ("real", "imag")
        is_sharded = keeps_rows and isinstance(view, Sharded) and view.dim_of_rows == 0
        return like(view, getattr(view.local, attribute)) if is_sharded else getattr(view.whole(), attribute)
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args)


def _set_attribute(func: Any, view: Any, attribute: str, args: Args) -> None:
    value = args[1]
    if attribute == "requires_grad":
        setattr(view.local, attribute, value)
    elif attribute == "grad":
        factor = 1 if view.world.is_exact else view.world.size
        view.local.grad = None if value is None else like(view, torch.zeros_like(view.local)).local
        if value is not None:
            like(view, view.local.grad).copy_(value.detach() * factor)
    elif attribute == "data" and value.shape == view.shape:
        with torch.no_grad():
            like(view, view.local.data).copy_(value)
    else:
        _with_whole(func, "__setitem__", args, {})


def has_rule(func: Any, kwargs: Kwargs) -> bool:
    """Say whether a function may be computed with parts, and computes something."""
    rule = _RULES.get(getattr(func, "__name__", ""))
    return rule is not None and rule is not _own_metadata and "out" not in kwargs


def _own_metadata(func: Any, args: Args, kwargs: Kwargs) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _register(rule: Rule, *every: str) -> Dict[str, Rule]:
    return dict.fromkeys(every, rule)


_RULES: Dict[str, Rule] = {
    **_register(elements.pointwise, *POINTWISE),
    **_register(along.along, *ALONG),
    **_register(shapes.reshape, *RESHAPES),
    **_register(shapes.permute, "permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis"),
    **_register(_own_metadata, "size", "dim", "ndimension", "numel", "nelement", "__len__", "stride", "element_size",
                "is_floating_point", "is_complex", "is_signed", "is_contiguous", "get_device", "__hash__"),
    **_register(along.squeeze, "squeeze"),
    **_register(shapes.get_item, "__getitem__"),
    **_register(shapes.concatenate, "cat", "concat", "concatenate", "stack"),
    **_register(along.multiply, "matmul", "__matmul__", "mm", "bmm", "linear"),
    **_register(along.of_rows, "layer_norm", "rms_norm", "embedding", "one_hot"),
    **_register(along.draw, *DRAWS),
    **dict.fromkeys(losses.NAMES, losses.rule),
}  # fmt: skip
View.rule = staticmethod(apply)
View.below = staticmethod(below.apply)
