"""Gradient scalers in a loop that is recorded or repeated: the journal keeps which steps overflowed, and the scale."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from .. import patches
from .tape import STEPPED, Journal

_WHY = "A gradient scaler leaves out steps whose gradients overflow; a repeated loop leaves out the same steps."


def install(tape: Journal, updated: Callable[[], None]) -> None:
    """Hook the gradient scaler; `updated` is called after each update."""
    kind: Any = torch.amp.GradScaler
    hooks = {
        "scale": _scaling(tape, kind.scale),
        "step": _stepping(tape, kind.step),
        "update": _ending(_left_out(tape, kind.update), updated),
        "get_scale": _reading(tape, kind.get_scale),
        "unscale_": _left_out(tape, kind.unscale_),
    }
    for name, new in hooks.items():
        patches.replace(kind, name, new, why=_WHY)


def _scaling(tape: Journal, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def scale(self: object, outputs: object) -> Any:
        return outputs if tape.is_playing else original(self, outputs)

    return scale


def _stepping(tape: Journal, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def step(self: Any, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if not self.is_enabled():
            return original(self, optimizer, *args, **kwargs)
        tape.is_scaling = True
        try:
            if tape.is_playing:
                return optimizer.step(*args, **kwargs) if tape.play(STEPPED) else None
            return _take(tape, lambda: original(self, optimizer, *args, **kwargs), optimizer)
        finally:
            tape.is_scaling = False

    return step


def _take(tape: Journal, take: Callable[[], Any], optimizer: torch.optim.Optimizer) -> Any:
    """Take a step, unless a gradient overflowed, and keep which of the two."""
    taken: list[bool] = []
    with tape.paused():
        handle = optimizer.register_step_pre_hook(lambda *_: taken.append(True))
        try:
            result = take()
        finally:
            handle.remove()
    if tape.is_recording:
        tape.keep(STEPPED, bool(taken))
    return result


def _left_out(tape: Journal, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def act(self: object, *args: object, **kwargs: object) -> Any:
        if tape.is_playing:
            return None
        with tape.paused():
            return original(self, *args, **kwargs)

    return act


def _ending(original: Callable[..., Any], updated: Callable[[], None]) -> Callable[..., Any]:
    @wraps(original)
    def act(self: object, *args: object, **kwargs: object) -> Any:
        result = original(self, *args, **kwargs)
        updated()
        return result

    return act


def _reading(tape: Journal, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def get(self: object) -> Any:
        return tape.read("get_scale", lambda: original(self))

    return get
