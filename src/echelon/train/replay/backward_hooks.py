"""A script's hooks of backward(): recorded calls are repeated in their order, with gradients without values."""

from functools import wraps
from typing import Any, Callable, List, Tuple

import torch
from torch import nn

from .. import patches
from .tape import HOOK, RECORD, Tape, is_ours

_WHY = "What a script's hooks of backward() do is repeated with the loop."
_IN_PLACE = "the owner"
_NAMES: Tuple[Tuple[Any, str], ...] = (
    (torch.Tensor, "register_hook"),
    (torch.Tensor, "register_post_accumulate_grad_hook"),
    (nn.Module, "register_full_backward_hook"),
    (nn.Module, "register_full_backward_pre_hook"),
)


class BackwardHooks:
    """The hooks of a script, in the order in which it registers them."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._calls: List[Tuple[Any, Callable[..., Any]]] = []

    def install(self) -> None:
        """Note each hook that the script registers."""
        for owner, name in _NAMES:
            patches.replace(owner, name, self._registering(getattr(owner, name)), why=_WHY)

    def play(self) -> None:
        """Call the hooks that backward() called at this place."""
        while self._tape.next_kind() == HOOK:
            number, entry = self._tape.play(HOOK)
            owner, hook = self._calls[number]
            hook(*(owner if word == _IN_PLACE else word for word in self._tape.forms.hollow(entry)))

    def _registering(self, register: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(register)
        def note(owner: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
            if is_ours(1) or not self._tape.is_here:
                return register(owner, hook, *args, **kwargs)
            self._calls.append((owner, hook))
            return register(owner, self._recording(owner, hook, len(self._calls) - 1), *args, **kwargs)

        return note

    def _recording(self, owner: Any, hook: Callable[..., Any], number: int) -> Callable[..., Any]:
        @wraps(hook)
        def call(*args: Any) -> Any:
            tape = self._tape
            if tape.phase != RECORD or not tape.is_mine:
                return hook(*args)
            words = [_IN_PLACE if word is owner else word for word in args]
            with tape.taken_in():
                tape.keep(HOOK, [number, tape.forms.note(words)])
                return hook(*args)

        call.is_of_script = True  # type: ignore[attr-defined]  # late_hooks.py waits with it
        return call
