"""The rules by which PyTorch's functions compute with global tensors.

Rows stay with their ranks where a function treats each row by itself. Sums over rows become parts of a total. Every
other function computes with the whole tensor, on every rank alike: slower, and right.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from ...pytorch import internals
from .. import patches
from ..function_types import Args, Function, Kwargs
from ..scaling_error import ScalingError
from ..wire import exchange
from . import aliases, along, dispatch, elements, ignore_index, losses, numbered, pieces
from .elements import is_in_place, like
from .functions import ALONG, DRAWS, LOCAL_ATTRIBUTES, POINTWISE, READS, RESHAPES
from .tensors import GlobalTensor, Partial, Sharded, map_tensors, own_part, plain, version_of

Rule = Callable[[Function, Args, Kwargs], Any]


def apply(func: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """Compute a function that has a global tensor among its arguments."""
    name = getattr(func, "__name__", "")
    aliases.copy_changes()
    if GlobalTensor.inside_of is not None:
        return func(*map_tensors(args, _own_inside), **map_tensors(kwargs, _own_inside))
    if name in ("__get__", "__set__"):
        return _attribute(func, name, args)
    if name in ("to", "type_as"):
        args, kwargs = _without_other(args, kwargs)
        if not isinstance(args[0], GlobalTensor):
            return args[0].to(*args[1:], **kwargs)
        func = torch.Tensor.to
    converted = numbered.convert(func, name, args, kwargs)
    if converted is not None:
        return converted
    rule = None if "out" in kwargs else _RULES.get(name)
    if rule is not _own_metadata:
        args, kwargs = numbered.show(args, kwargs)
    result = None if rule is None else _by_rule(rule, func, args, kwargs)
    result = _with_whole(func, name, args, kwargs) if result is None else result
    if is_in_place(name) and args and getattr(args[0], "origin", None) is not None:
        gradient, factor = args[0].origin
        gradient.copy_(args[0].local * factor)
    return result


def _without_other(args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Return the arguments of to(), with the type and device of another tensor in the place of that tensor."""
    other = args[1] if len(args) > 1 else kwargs.get("other")
    if not isinstance(other, torch.Tensor):
        return args, kwargs
    rest = {key: value for key, value in kwargs.items() if key != "other"}
    return (args[0], other.device, other.dtype, *args[2:]), rest


def _own_inside(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a global tensor that a model uses without an argument, such as a state it keeps."""
    lead = GlobalTensor.inside_of
    if not isinstance(tensor, GlobalTensor) or lead is None:
        return tensor
    global_tensor: Any = tensor
    if isinstance(global_tensor, pieces.Pieces):
        global_tensor = next(part for part in global_tensor.parts if part.world.rank == lead.world.rank)
    if not isinstance(global_tensor, Sharded):
        return exchange.enter(global_tensor.whole(), lead.world)
    if lead.cut_from is not None and global_tensor.rows == lead.cut_from[0].rows:
        return global_tensor.local.narrow(global_tensor.dim_of_rows, *lead.cut_from[1:])
    if global_tensor.rows != lead.rows:
        raise ScalingError(
            f"the model gets {sum(lead.rows)} samples, but uses a shared tensor of "
            f"{sum(global_tensor.rows)} rows that is not an argument of the "
            "model",
            "pass this tensor to the model as an argument, or start one rank: echelon run -n 1 …",
        )
    return global_tensor.local


def _by_rule(rule: Rule, func: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """Compute by a rule, with each virtual shard by itself; return None where the function needs the whole tensor."""
    lead = pieces.first_of(args, kwargs)
    if lead is None or rule in (_own_metadata, _register_hook, _retain_grad):
        result = rule(func, args, kwargs)
        if result is not None:
            ignore_index.carry(func.__name__, args[0] if args else None, result)
        return result
    if rule is losses.rule:
        shard_losses = losses.rule_of_pieces(func, pieces.apart((args, kwargs), len(lead.parts)))
        return None if shard_losses is None else pieces.of(shard_losses)
    return pieces.each(partial(_by_rule, rule, func), args, kwargs, lead, draws=rule is along.draw)


def _with_whole(func: Function, name: str, args: Args, kwargs: Kwargs) -> object:
    """Gather the parts and compute with whole tensors; copy in-place changes of a whole to its global tensor."""
    wholes: dict[int, _Whole] = {}

    def put_together(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, GlobalTensor):
            return tensor
        if id(tensor) not in wholes:
            whole = aliases.whole_of(tensor)
            wholes[id(tensor)] = _Whole(tensor, whole, version_of(whole))
        return wholes[id(tensor)].whole

    with torch.set_grad_enabled(torch.is_grad_enabled() and name not in READS):
        whole_args, whole_kwargs = map_tensors((args, kwargs), put_together)
        result = func(*whole_args, **whole_kwargs)
    first = args[0] if args and is_in_place(name) else None
    changed = [one for one in wholes.values() if one.view is first or version_of(one.whole) != one.version]
    for entry in changed:
        entry.view.put_whole(entry.whole)
    result = _without_changed(result, changed)
    for entry in wholes.values():
        aliases.note(entry.view, entry.whole, result)
    return result


class _Whole(NamedTuple):
    view: GlobalTensor
    whole: torch.Tensor
    version: int
    """The version of the whole before a function was called with it."""


def _without_changed(result: object, changed: list[_Whole]) -> object:
    """Return a function's result with each changed whole replaced by its global tensor."""
    global_tensor_of = {id(one.whole): one.view for one in changed}
    return map_tensors(
        result, lambda tensor: global_tensor_of.get(id(tensor)) if id(tensor) in global_tensor_of else _marked(tensor)
    )


def compute_whole(func: Function, args: Args) -> object:
    """Compute a function with whole tensors in place of global tensors."""
    aliases.copy_changes()
    return _with_whole(func, "", args, {})


def _marked(tensor: torch.Tensor) -> torch.Tensor:
    """Mark a plain tensor that was computed from whole batches: a model may share its rows again."""
    if isinstance(tensor, GlobalTensor):
        return tensor
    tensor.comes_from_batches = True  # type: ignore[attr-defined]
    return tensor


def _attribute(func: Any, name: str, args: Args) -> object:
    """Read or set an attribute: shape, dtype and device of the global tensor, gradients of this rank's part."""
    tensor: Any = args[0]
    attribute = getattr(func.__self__, "__name__", "")
    if isinstance(tensor, pieces.Pieces) and attribute in ("grad", "data", "requires_grad"):
        return pieces.of([_attribute(func, name, mine) for mine in pieces.apart(args, len(tensor.parts))])
    if name == "__set__":
        _set_attribute(func, tensor, attribute, args)
        return None
    if attribute == "grad":
        gradient = tensor.local.grad
        seen: Any = None if gradient is None else _gradient_of(tensor, gradient)
        if hasattr(seen, "world"):
            seen.origin = (gradient, 1 if tensor.world.is_exact else tensor.world.size)
        return seen
    if attribute == "data":
        return like(tensor, tensor.local.data)
    if attribute in LOCAL_ATTRIBUTES:
        return getattr(tensor.unsettled if isinstance(tensor, Partial) else tensor.local, attribute)
    if attribute in ("T", "mT", "H", "mH", "real", "imag"):
        keeps_rows = (attribute in ("mT", "mH") and tensor.dim() > 2) or attribute in ("real", "imag")
        is_sharded = keeps_rows and isinstance(tensor, Sharded) and tensor.dim_of_rows == 0
        return like(tensor, getattr(tensor.local, attribute)) if is_sharded else _with_whole(func, "", args, {})
    with internals.plain_classes():
        return func(*args)


def _set_attribute(func: Callable[..., object], tensor: Any, attribute: str, args: Args) -> None:
    value = args[1]
    if attribute == "requires_grad":
        setattr(tensor.local, attribute, value)
    elif attribute == "grad":
        factor = 1 if tensor.world.is_exact else tensor.world.size
        tensor.local.grad = None if value is None else like(tensor, torch.zeros_like(tensor.local)).local
        if value is not None:
            like(tensor, tensor.local.grad).copy_(value.detach() * factor)
    elif attribute == "data" and value.shape == tensor.shape:
        with torch.no_grad():
            like(tensor, tensor.local.data).copy_(value)
    else:
        _with_whole(func, "__setitem__", args, {})


def has_rule(func: Function, kwargs: Kwargs) -> bool:
    """Say whether a function has a rule and computes something, rather than reading sizes."""
    rule = _RULES.get(getattr(func, "__name__", ""))
    return rule is not None and rule is not _own_metadata and "out" not in kwargs


def _gradient_of(tensor: Any, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a global tensor from its part's gradient, which is that of the sum of all ranks' losses.

    All ranks have the whole gradient of a total.
    """
    gradient = gradient / (1 if tensor.world.is_exact else tensor.world.size)
    return gradient if isinstance(tensor, Partial) else like(tensor, gradient)


def _register_hook(_func: Function, args: Args, kwargs: Kwargs) -> object:
    """Register a hook that gets the gradient of the global tensor and may return another gradient."""
    tensor, hook = (*args, *kwargs.values())
    if isinstance(tensor, pieces.Pieces):
        raise ScalingError(
            "echelon does not call a hook on the gradient of a batch with --exact",
            "remove the hook, or run without --exact",
        )

    def call(gradient: torch.Tensor) -> torch.Tensor | None:
        result = hook(_gradient_of(tensor, gradient))
        if isinstance(tensor, Sharded) and not tensor.rows[tensor.world.rank]:  # a placeholder in place of samples
            return torch.zeros_like(gradient)
        if result is None:
            return None
        local = result.local if isinstance(result, Sharded) else _own_gradient(tensor, plain(result))
        return local * (1 if tensor.world.is_exact else tensor.world.size)

    return (tensor.unsettled if isinstance(tensor, Partial) else tensor.local).register_hook(call)


def _own_gradient(tensor: Any, whole: torch.Tensor) -> torch.Tensor:
    return whole if isinstance(tensor, Partial) else own_part(whole, tensor.world.rank, tensor.rows, tensor.dim_of_rows)


def _retain_grad(_func: Function, args: Args, _kwargs: Kwargs) -> Any:
    for shard in pieces.shards_of(args[0]):
        tensor: Any = shard
        tensor.local.retain_grad()


def _own_metadata(func: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    with internals.plain_classes():
        return func(*args, **kwargs)


def _register(rule: Rule, *every: str) -> dict[str, Rule]:
    return dict.fromkeys(every, rule)


_RULES: dict[str, Rule] = {
    **_register(elements.pointwise, *POINTWISE),
    **_register(along.along, *ALONG),
    **_register(along.reshape, *RESHAPES),
    **_register(along.permute, "permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis"),
    **_register(_own_metadata, "size", "dim", "ndimension", "numel", "nelement", "__len__", "stride", "element_size",
                "is_floating_point", "is_complex", "is_signed", "is_contiguous", "get_device", "__hash__"),
    "register_hook": _register_hook,
    "retain_grad": _retain_grad,
    **_register(along.squeeze, "squeeze"),
    **_register(along.get_item, "__getitem__"),
    **_register(along.concatenate, "cat", "concat", "concatenate", "stack"),
    **_register(along.multiply, "matmul", "__matmul__", "mm", "bmm", "linear"),
    **_register(along.of_rows, "layer_norm", "rms_norm", "embedding", "one_hot"),
    **_register(along.draw, *DRAWS),
    **dict.fromkeys(losses.NAMES, losses.rule),
}  # fmt: skip


def install() -> None:
    """Let PyTorch's functions follow the rules where they get a global tensor."""
    why = "What is computed of a batch follows its rows."
    patches.replace(GlobalTensor, "rule", staticmethod(apply), why=why)
    patches.replace(GlobalTensor, "below", staticmethod(dispatch.apply), why=why)
