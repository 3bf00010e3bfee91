"""Call hooks on the gradients of weights with the gradient of the whole batch, as on one device.

A backward pass first gives a rank the gradient of its own samples. A hook that clamps would clamp this gradient, so
the hook waits until the ranks have computed the mean.
"""

import sys
from collections import OrderedDict
from contextlib import contextmanager
from functools import wraps
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from . import patches
from .gather import is_sharded, whole

_INSIDE = ("torch", "echelon", "_echelon")
_KINDS = ("register_hook", "register_post_accumulate_grad_hook")


class LateHooks:
    """The hooks that scripts have registered on weights."""

    def __init__(self) -> None:
        self._hooks: Dict[str, Dict[int, Tuple[nn.Parameter, Dict[int, Any]]]] = {kind: {} for kind in _KINDS}

    def install(self) -> None:
        """Collect the hooks that scripts register from now on."""
        for kind in _KINDS:
            register = self._taking(kind, getattr(torch.Tensor, kind))
            patches.replace(
                torch.Tensor, kind, register, why="A hook of a weight sees the gradient of the whole batch."
            )

    def _taking(self, kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
        known = self._hooks[kind]

        @wraps(original)  # global tensors know functions by their names
        def register(tensor: torch.Tensor, hook: Any) -> Any:
            caller = str(sys._getframe(1).f_globals.get("__name__", "")).partition(".")[0]
            is_inside = caller in _INSIDE and not getattr(hook, "is_of_script", False)
            if not isinstance(tensor, nn.Parameter) or not tensor.is_leaf or is_inside:
                return original(tensor, hook)
            hooks: Dict[int, Any] = known.setdefault(id(tensor), (tensor, OrderedDict()))[1]
            handle = RemovableHandle(hooks)
            hooks[handle.id] = hook
            return handle

        return register

    def _of(self, kind: str) -> List[Tuple[nn.Parameter, List[Any]]]:
        return [(weight, list(hooks.values())) for weight, hooks in self._hooks[kind].values() if hooks]

    @contextmanager
    def around_backward(self, gradients: Any) -> Iterator[None]:
        """Call the hooks with the gradients that a backward pass has added, after their mean over ranks."""
        before, after = ([(gradients.present(one), hooks) for one, hooks in self._of(kind)] for kind in _KINDS)
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

    def changed(self, tensor: Any, gradient: Any) -> Any:
        """Return the gradient of a weight as its hooks change it."""
        _, hooks = self._hooks[_KINDS[0]].get(id(tensor), (None, {}))
        return _changed(gradient, list(hooks.values()))


def _changed(gradient: Any, hooks: List[Any]) -> Any:
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


def _sum(kept: Any, added: Any) -> Any:
    return added if kept is None else kept if added is None else kept + added
