"""Optimizers that compute each element by itself step on what a rank holds, and no DTensor is asked how it is spread.

PyTorch asks it for each operation, and for the first of each kind it takes milliseconds to answer.
"""

from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..optimizer_kinds import ELEMENTWISE


def on_own_elements(kind: Any, *, at_once: bool) -> Any:
    """Return the same class of optimizers, whose steps compute with what this rank holds of each weight.

    With `at_once` one call changes all weights of a group, which needs room for as many elements more.
    """
    if kind not in ELEMENTWISE:
        return kind

    def reduce(self: Any, _protocol: Any) -> Any:
        return _of_kind, (kind, at_once), self.__getstate__()

    own = {"step": _step(kind, at_once), "__module__": kind.__module__, "__reduce_ex__": reduce}
    return type(kind.__name__, (kind,), own)


def install() -> None:
    """Let PyTorch's own classes step so, before any optimizer is made."""
    for kind in ELEMENTWISE:
        kind.step = _step(kind, at_once=False)  # type: ignore[method-assign]


def _step(kind: Any, at_once: bool) -> Callable[..., Any]:
    step_of_kind = kind.step.__wrapped__ if getattr(kind.step, "hooked", False) else kind.step

    def step(self: Any, closure: Any = None) -> Any:
        """Step, after the loss was computed again if that is asked for."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        _place_gradients(self.param_groups)
        with _OwnElements(), _at_once(self.param_groups if at_once else ()):  # type: ignore[no-untyped-call]
            step_of_kind(self)
        return loss

    return step


def _of_kind(kind: Any, at_once: bool) -> Any:
    """Return what a pickled optimizer is made of."""
    own = on_own_elements(kind, at_once=at_once)
    return own.__new__(own)


def _place_gradients(groups: Iterable[Dict[str, Any]]) -> None:
    """Spread each gradient as its weight is: a sum that is still to be made is no element of it."""
    for weight in (one for group in groups for one in group["params"]):
        if isinstance(weight.grad, DTensor) and weight.grad.placements != weight.placements:
            weight.grad = weight.grad.redistribute(placements=weight.placements)


@contextmanager
def _at_once(groups: Iterable[Dict[str, Any]]) -> Iterator[None]:
    """Let each call change a whole group where the user chose nothing else; what is saved of it stays as it is."""
    free = [one for one in groups if one.get("foreach", False) is None and not _forbids_it(one)]
    for group in free:
        group["foreach"] = True
    try:
        yield
    finally:
        for group in free:
            group["foreach"] = None


def _forbids_it(group: Dict[str, Any]) -> bool:
    return bool(group.get("fused") or group["differentiable"] or isinstance(group["lr"], torch.Tensor))


class _OwnElements(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Compute with the local tensors of DTensors; what comes out is spread as what went in."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor not in types:
            return func(*args, **(kwargs or {}))
        spread: Dict[int, DTensor] = {}
        own = {name: _own(one, spread) for name, one in (kwargs or {}).items()}  # first, for `out` is what comes out
        result = func(*_own(args, spread), **own)
        likes = list(spread.values())
        if isinstance(result, (list, tuple)):
            return type(result)(_as_spread(one, spread, like) for one, like in zip(result, likes))  # noqa: B905
        return _as_spread(result, spread, likes[0])


def _own(value: Any, spread: Dict[int, DTensor]) -> Any:
    """Return what this rank holds of an argument, and note whose it is."""
    if isinstance(value, DTensor):
        spread[id(value._local_tensor)] = value
        return value._local_tensor
    return [_own(one, spread) for one in value] if isinstance(value, (list, tuple)) else value


def _as_spread(result: Any, spread: Dict[int, DTensor], like: DTensor) -> Any:
    """Return a result as a DTensor: that which was changed, or one that is spread as the weight at its place."""
    if not isinstance(result, torch.Tensor) or id(result) in spread:
        return spread.get(id(result), result)
    if result.shape != like._local_tensor.shape:
        raise AssertionError("%s is no result of each element by itself" % (tuple(result.shape),))
    return DTensor(result, like._spec, requires_grad=False)  # type: ignore[no-untyped-call]
