"""Switch dropout off while steps are compared: each rank would drop other elements than one device drops."""

from functools import partial, wraps
from typing import Any, Callable, List

import torch
from torch import nn

_DROPOUTS = ("dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d")


def switch_off() -> Callable[[], None]:
    """Let nothing drop out; return what switches it on again."""
    undo: List[Callable[[], None]] = []
    functional = nn.functional
    for name in _DROPOUTS:
        original = getattr(functional, name)
        setattr(functional, name, _without_dropout)
        undo.append(partial(setattr, functional, name, original))
    attention = functional.scaled_dot_product_attention
    undo.append(partial(setattr, functional, "scaled_dot_product_attention", attention))
    functional.scaled_dot_product_attention = _attention_without_dropout(attention)

    def switch_on() -> None:
        while undo:
            undo.pop()()

    return switch_on


def _without_dropout(tensor: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
    return tensor


def _attention_without_dropout(attention: Any) -> Any:
    @wraps(attention)  # torch.compile asks functions for their names
    def compute(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("dropout_p", None)  # the fifth argument
        return attention(*args[:4], *((0.0,) if len(args) > 4 else ()), *args[5:], **kwargs)

    return compute
