"""Functions of PyTorch that the script calls: selections by masks, and draws of random numbers.

The shape of tensor[mask] depends on values, so the journal keeps it. draws.py tells about random numbers.

`Tensor.__getitem__` cannot be replaced: torch.tensor([scalar, …]) would take scalars for sequences from then on. A mode
of torch functions sees it too. It is left wherever the journal keeps nothing, as inside of models.
"""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...pytorch import internals
from .draws import ScriptDraws, is_draw
from .tape import Tape

_KIND = "a selection by a mask"
_GET = torch.Tensor.__getitem__


class Masks(TorchFunctionMode):
    """Ask the tape for selections by masks, and for the state of random numbers."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self._tape = tape
        self._is_on = False
        self.draws = ScriptDraws(tape)

    def switch(self, *, is_on: bool) -> None:
        """Enter or leave the mode; where the script has entered another one since, stay."""
        if is_on == self._is_on:
            return
        if is_on:
            internals.push_function_mode(self)
        elif internals.innermost_function_mode() is self:
            internals.pop_function_mode()
        else:
            return
        self._is_on = is_on

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tape = self._tape
        if is_draw(func) and tape.is_here:
            with self.draws.drawing():
                return func(*args, **kwargs)
        if func is not _GET or not tape.is_here or not _has_mask(args[1]):
            return func(*args, **kwargs)
        if tape.is_playing:
            return tape.forms.hollow(tape.play(_KIND))
        selected = func(*args, **kwargs)
        if tape.is_recording:
            tape.keep(_KIND, tape.forms.note(selected))
        return selected


def _has_mask(index: Any) -> bool:
    if isinstance(index, torch.Tensor):
        return index.dtype in (torch.bool, torch.uint8)
    return isinstance(index, (tuple, list)) and any(map(_has_mask, index))
