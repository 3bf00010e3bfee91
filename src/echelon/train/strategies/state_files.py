"""Read the state of a model: a mapping by name, or a file or folder of PyTorch or safetensors."""

import os
from typing import Mapping, Union

import torch

from ...checkpoint import safetensors
from ...checkpoint.errors import FormatError
from .strategy import StrategyError

State = Union[str, Mapping[str, torch.Tensor]]


def read(state: State) -> Mapping[str, torch.Tensor]:
    """Return a state by name, from a mapping or a file; a file is mapped, so that a rank reads only its parts."""
    if not isinstance(state, (str, os.PathLike)):
        return state
    path = os.fspath(state)
    if os.path.isdir(path) or path.endswith(".safetensors"):
        try:
            return safetensors.read(path)
        except FormatError as error:
            raise StrategyError(error.message, hint=error.hint) from None
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return content.get("model", content)  # type: ignore[no-any-return]
