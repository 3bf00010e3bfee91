"""Switch dropout off while steps are compared: each rank would drop other elements than one device drops."""

from functools import wraps
from typing import Any, Callable

import torch
from torch import nn

from .. import patches

_DROPOUTS = ("dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d")


def switch_off() -> Callable[[], None]:
    """Let nothing drop out; return what switches it on again."""
    functional = nn.functional
    attention = _attention_without_dropout(functional.scaled_dot_product_attention)
    functions = {**dict.fromkeys(_DROPOUTS, _without_dropout), "scaled_dot_product_attention": attention}
    why = "Steps are compared without dropout: each rank would drop other elements."
    installed = [patches.replace(functional, name, function, why=why) for name, function in functions.items()]

    def switch_on() -> None:
        while installed:
            installed.pop().undo()

    return switch_on


def _without_dropout(tensor: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
    return tensor


def _attention_without_dropout(attention: Any) -> Any:
    @wraps(attention)  # torch.compile asks functions for their names
    def compute(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("dropout_p", None)  # the fifth argument
        return attention(*args[:4], *((0.0,) if len(args) > 4 else ()), *args[5:], **kwargs)

    return compute
