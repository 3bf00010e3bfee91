"""Refuse an exception of a model that the script catches, unless all ranks raised it: the ranks would diverge."""

import datetime
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch import nn

from ..pytorch import distributed
from .scaling_error import ScalingError
from .wire.world import World

PATIENCE = datetime.timedelta(seconds=30)
"""How much later than this rank another rank may reach the same call of a model: the step before ended together."""


class Raised:
    """The exception that a model raised on this rank, until the script goes on."""

    def __init__(self, world: World) -> None:
        self._world = world.processes
        self._last: tuple[int, str] | None = None

    @contextmanager
    def noted(self, num_call: int, module: nn.Module) -> Iterator[None]:
        """Note an exception that a call of a model raises, and tell the other ranks."""
        try:
            yield
        except Exception as error:
            if dist.is_initialized() and self._world.size > 1:
                words = "".join(traceback.format_exception_only(type(error), error)).strip().partition("\n")[0]
                self._last = (num_call, f"{type(module).__name__} raised {words}")
                distributed.default_store().set(_key(num_call, self._world.rank), "1")
            raise

    def refuse_if_caught(self) -> None:
        """Refuse to continue if the script has caught an exception that other ranks did not raise."""
        if self._last is None:
            return
        (num_call, words), self._last = self._last, None
        other_ranks = [rank for rank in range(self._world.size) if rank != self._world.rank]
        try:
            distributed.default_store().wait([_key(num_call, rank) for rank in other_ranks], PATIENCE)
        except RuntimeError as error:
            raise ScalingError(
                f"{words} on rank {self._world.rank}, for this rank's samples of a batch, and the script caught the "
                "exception; the other ranks continued, and would wait for this rank forever",
                "look for these samples before the script calls the model, where the batch is whole; or start "
                "one rank: echelon run -n 1 …",
            ) from error


def _key(num_call: int, rank: int) -> str:
    return f"echelon/raised/{num_call}/{rank}"
