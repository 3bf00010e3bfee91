"""Which optimizers can step with a part of each weight, and which give the same bits for every partition of weights.

Elementwise optimizers step on the local parts of weights, without the dispatch of DTensor.

DTensor derives placements for each operation, and the first operation of each kind takes milliseconds.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import optim
from torch.distributed.tensor import DTensor

from ..pytorch import distributed
from . import patches
from .function_types import Function, ParamGroup

ELEMENTWISE = (
    optim.ASGD, optim.Adadelta, optim.Adagrad, optim.Adam, optim.AdamW, optim.Adamax, optim.NAdam, optim.RAdam,
    optim.RMSprop, optim.Rprop, optim.SGD,
)  # fmt: skip
"""Optimizers that compute each element by itself."""
_NEED_WHOLE = {"LBFGS": "all weights as one vector", "Adafactor": "means over rows and columns of whole weights"}


def why_needs_whole(kind: object) -> str | None:
    """Return why an optimizer needs more than a part of each weight; None if a part suffices."""
    names = [name for name in _names(kind) if name in _NEED_WHOLE]
    return f"{names[0]} computes with {_NEED_WHOLE[names[0]]}" if names else None


def needs_all_weights(kind: object) -> bool:
    return "LBFGS" in _names(kind)


def _names(kind: object) -> list[str]:
    """Return the names of a class and its bases, because other libraries have an Adafactor too."""
    return [base.__name__ for base in getattr(kind, "__mro__", ())]


def why_bits_differ(kind: object, *, is_fused: bool) -> str | None:
    """Return why the bits of a step may depend on the partition of weights; None if they do not."""
    name = getattr(kind, "__name__", kind)
    if kind not in ELEMENTWISE:
        known = ", ".join(sorted(one.__name__ for one in ELEMENTWISE))
        return (
            f"{name} may mix the elements of a weight; an exact run that shards weights needs an optimizer that "
            f"computes each element by itself: {known}"
        )
    if is_fused:  # seen with SGD, momentum and decay on a CPU
        return f"{name}(fused=True) rounds the last elements of a shard differently, and this exact run shards weights"
    return None


def on_own_elements(kind: object, *, at_once: bool) -> Any:
    """Return a subclass of an optimizer class, whose steps compute with this rank's part of each weight.

    With `at_once` one call changes all weights of a group, which needs memory for as many additional elements.
    """
    if kind not in ELEMENTWISE:
        return kind

    def reduce(self: Any, _protocol: object) -> Any:
        return _of_kind, (kind, at_once), self.__getstate__()

    own = {"step": _step(kind, at_once), "__module__": kind.__module__, "__reduce_ex__": reduce}
    return type(kind.__name__, (kind,), own)


def install() -> None:
    """Let PyTorch's own classes step on local parts, before an optimizer is made."""
    for kind in [one for one in ELEMENTWISE if "step" in vars(one)]:  # AdamW may inherit Adam's
        step = _step(kind, at_once=False)
        patches.replace(kind, "step", step, why="An optimizer steps on the elements that this rank holds.")


def _step(kind: Any, at_once: bool) -> Function:
    step_of_kind = kind.step.__wrapped__ if getattr(kind.step, "hooked", False) else kind.step

    def step(self: Any, closure: Any = None) -> Any:
        """Step; compute the loss first if there is a closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        _place_gradients(self.param_groups)
        with _own_parts(self), _at_once(self.param_groups if at_once else ()):
            step_of_kind(self)
        return loss

    return step


def _of_kind(kind: object, at_once: bool) -> Any:
    """Return an empty optimizer, for unpickling."""
    own = on_own_elements(kind, at_once=at_once)
    return own.__new__(own)


def _place_gradients(groups: Iterable[ParamGroup]) -> None:
    """Give each gradient the placements of its weight; this completes partial sums."""
    for weight in (one for group in groups for one in group["params"]):
        if isinstance(weight.grad, DTensor) and weight.grad.placements != weight.placements:
            weight.grad = weight.grad.redistribute(placements=weight.placements)


@contextmanager
def _at_once(groups: Iterable[dict[str, object]]) -> Iterator[None]:
    """Let one call change a whole group if the user chose nothing else; the saved settings stay unchanged."""
    free = [one for one in groups if one.get("foreach", False) is None and not _forbids_it(one)]
    for group in free:
        group["foreach"] = True
    try:
        yield
    finally:
        for group in free:
            group["foreach"] = None


def _forbids_it(group: dict[str, object]) -> bool:
    return bool(group.get("fused") or group["differentiable"] or isinstance(group["lr"], torch.Tensor))


@contextmanager
def _own_parts(optimizer: Any) -> Iterator[None]:
    """Give an optimizer plain tensors for one step: this rank's parts of weights, gradients and states."""
    groups, states = optimizer.param_groups, optimizer.state
    weights = [group["params"] for group in groups]
    parts = {one: distributed.local_part(one) for each in weights for one in each if isinstance(one, DTensor)}
    if not parts:
        yield
        return
    own: dict[Any, Any] = defaultdict(dict)
    for key, values in states.items():
        own[parts.get(key, key)] = {name: _part(one) for name, one in values.items()} if key in parts else values
    for weight, part in parts.items():
        part.grad = _part(weight.grad)
    for group, group_weights in zip(groups, weights, strict=False):
        group["params"] = [parts.get(one, one) for one in group_weights]
    optimizer.state = own
    try:
        yield
    finally:
        optimizer.state = states
        for group, group_weights in zip(groups, weights, strict=False):
            group["params"] = group_weights
        for weight, part in parts.items():
            part.grad = None
            if part in own:
                _keep(states[weight], own.pop(part), weight)
        states.update(own)  # states of weights that are not cut


def _part(value: object) -> Any:
    return distributed.local_part(value) if isinstance(value, DTensor) else value


def _keep(states: dict[str, object], new: dict[str, object], weight: Any) -> None:
    """Store the new states of one weight; a state with the shape of the weight gets its placements."""
    for name, value in new.items():
        if value is not _part(states.get(name)):
            is_cut = getattr(value, "shape", ()) == distributed.local_part(weight).shape
            states[name] = DTensor(value, weight._spec, requires_grad=False) if is_cut else value  # type: ignore[no-untyped-call]
