"""The states of the random numbers that a rank alone draws, as a tensor of a checkpoint."""

import torch

from .. import plain_data
from .generators import Generators


def as_tensor(generators: Generators) -> torch.Tensor:
    """Return the states as bytes, shape (number of bytes,); empty if this rank drew none."""
    state = generators.own_state()
    content = b"" if state is None else plain_data.encode(state)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0, dtype=torch.uint8)


def put(generators: Generators, states: torch.Tensor) -> None:
    """Let this rank go on with the states of a checkpoint; an empty tensor changes nothing."""
    if states.numel():
        generators.put_own_state(plain_data.decode(bytes(states.tolist())))
