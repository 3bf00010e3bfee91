"""Plain data as tensors of bytes, so that each rank has its own in a checkpoint."""

from typing import Any

import torch

from .. import plain_data

OWN = "of ranks: "
"""How the name of a tensor begins that holds plain data; no name of a script's model does."""


def as_bytes(value: Any) -> torch.Tensor:
    """Return plain data as a tensor of bytes, shape (number of bytes,)."""
    return torch.frombuffer(bytearray(plain_data.encode(value)), dtype=torch.uint8)


def from_bytes(content: torch.Tensor) -> Any:
    """Return what `as_bytes` encoded.

    >>> from_bytes(as_bytes({"rate": 0.1}))
    {'rate': 0.1}
    """
    return plain_data.decode(content.numpy().tobytes())
