"""Hooks of a script on gradients: they are called with the gradient of the whole batch, as on one device.

Call hooks on the gradients of weights with the gradient of the whole batch, as on one device.

A backward pass first gives a rank the gradient of its own samples. A hook that clamps would clamp this gradient, so
the hook waits until the ranks have computed the mean.

Find observers of gradients that may have to be multiplied by a factor later (global_tensors/ignore_index.py).

A later factor gives the right gradients of weights, as backward() is linear. It does not undo changes by a hook or a
script's own autograd function, nor reach the gradients of other tensors.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ..pytorch import internals
from . import patches
from .scaling_error import ScalingError
from .wire.gather import is_sharded, whole

_INSIDE = ("torch", "echelon", "_echelon")
_KINDS = ("register_hook", "register_post_accumulate_grad_hook")


class LateHooks:
    """The hooks that scripts have registered on weights."""

    def __init__(self) -> None:
        self._hooks: dict[str, dict[int, tuple[nn.Parameter, dict[int, Any]]]] = {kind: {} for kind in _KINDS}

    def install(self) -> None:
        for kind in _KINDS:
            register = self._taking(kind, getattr(torch.Tensor, kind))
            patches.replace(
                torch.Tensor, kind, register, why="A hook of a weight sees the gradient of the whole batch."
            )

    def _taking(self, kind: str, original: Callable[..., object]) -> Callable[..., object]:
        known = self._hooks[kind]

        @wraps(original)  # global tensors know functions by their names
        def register(tensor: torch.Tensor, hook: object) -> object:
            caller = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
            is_inside = caller in _INSIDE and not getattr(hook, "is_of_script", False)
            if not isinstance(tensor, nn.Parameter) or not tensor.is_leaf or is_inside:
                return original(tensor, hook)
            hooks: dict[int, Any] = known.setdefault(id(tensor), (tensor, OrderedDict()))[1]
            handle = RemovableHandle(hooks)
            hooks[handle.id] = hook
            return handle

        return register

    @contextmanager
    def around_backward(self, gradients: Any) -> Iterator[None]:
        """Call the hooks with the gradients that a backward pass has added, after their mean over ranks."""
        before, after = (
            [(gradients.current_parameter(weight), list(hooks.values())) for weight, hooks in known.values() if hooks]
            for known in self._hooks.values()
        )
        kept = {id(weight): weight.grad for weight, _ in (*before, *after)}
        for weight, _ in (*before, *after):
            weight.grad = None
        try:
            yield
        except BaseException:
            for weight, _ in (*before, *after):
                weight.grad = kept[id(weight)]
            raise
        if kept:
            gradients.reduce()
        with torch.no_grad():
            for weight, hooks in before:
                weight.grad = _changed(weight.grad, hooks)
            for weight in {id(one): one for one, _ in (*before, *after)}.values():
                weight.grad = _sum(kept[id(weight)], weight.grad)
            for weight, hooks in after:
                for hook in hooks if weight.grad is not None else ():
                    hook(weight)

    def changed(self, tensor: object, gradient: object) -> Any:
        _, hooks = self._hooks[_KINDS[0]].get(id(tensor), (None, {}))
        return _changed(gradient, list(hooks.values()))


def _changed(gradient: Any, hooks: list[Any]) -> Any:
    if gradient is None or not hooks:
        return gradient
    result = whole(gradient)
    for hook in hooks:
        changed = hook(result)
        result = result if changed is None else changed
    if not is_sharded(gradient):
        return result
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(result, gradient.device_mesh, gradient.placements)


def _sum(kept: object, added: Any) -> object:
    return added if kept is None else kept if added is None else kept + added


_HOOKS = (
    (torch.Tensor, ("register_hook", "register_post_accumulate_grad_hook", "retain_grad")),
    (nn.Module, ("register_backward_hook", "register_full_backward_hook", "register_full_backward_pre_hook")),
    (nn.modules.module, ("register_module_backward_hook", "register_module_full_backward_hook",
                         "register_module_full_backward_pre_hook")),
    (torch.autograd.graph, ("register_multi_grad_hook",)),
)  # fmt: skip
_WHY = "A hook that sees gradients may not see some that are multiplied by a factor later."


class GradientObservers:
    """Whether observers of gradients exist, noticed when they are registered."""

    def __init__(self) -> None:
        self.are_there = False
        """Whether an observer may see a gradient before it is multiplied."""

    def install(self) -> None:
        def noticed(original: Callable[..., object]) -> Callable[..., object]:
            @wraps(original)  # global tensors know functions by their names
            def register(*args: object, **kwargs: object) -> object:
                self.note()
                return original(*args, **kwargs)

            return register

        for owner, names in _HOOKS:
            for name in names:
                if hasattr(owner, name):
                    patches.replace(owner, name, noticed(getattr(owner, name)), why=_WHY)
        self.are_there = any(_is_own(one) for one in torch.autograd.Function.__subclasses__())

        def begin_class(cls: type) -> None:
            if _is_own(cls):
                self.note()

        patches.replace(torch.autograd.Function, "__init_subclass__", classmethod(begin_class), why=_WHY)

    def note(self) -> None:
        self.are_there = True

    def look(self, loss: torch.Tensor, parameters: list[nn.Parameter]) -> None:
        known = {id(one) for one in parameters}
        if any(id(one) not in known for one in leaves_of(loss)):
            self.note()


def multiply_all(loss: torch.Tensor, factor: float, parameters: list[nn.Parameter]) -> None:
    """Multiply every gradient that the backward() of this loss has made; parameters had no gradient before."""
    known = {id(one) for one in parameters}
    for leaf in leaves_of(loss):
        gradient = leaf.grad
        if id(leaf) not in known and gradient is not None and internals.version(gradient):  # it was added to another
            raise ScalingError(
                "a batch has targets that do not count (-100), but no batch before had them; its gradients "
                f"were added to those of a tensor of shape {tuple(leaf.shape)} that no optimizer changes",
                "include targets that do not count in the first batch too, or start one rank: echelon run -n 1 …",
            )
        if gradient is not None:
            gradient.mul_(factor)


def leaves_of(loss: torch.Tensor) -> list[torch.Tensor]:
    leaves: list[torch.Tensor] = []
    seen: set[Any] = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves.append(variable)
        waiting.extend(following for following, _ in node.next_functions)
    return leaves


def _is_own(function: type) -> bool:
    """Say whether an autograd function is the script's; others are linear, or not a script's."""
    return any(one.__module__.partition(".")[0] not in _INSIDE for one in (function, *function.__subclasses__()))
