"""Numbers of rows of a batch, which count from its begin: a rank that loads its own part counts from the part's begin.

In a batch that joins graphs or ragged lists, the vector that says which row belongs to which sample is such a tensor,
and so are the places where samples begin. A model gets the numbers of its rank's part; the script sees those of the
whole batch.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ..function_types import Args, Function, Kwargs
from ..scaling_error import ScalingError
from ..wire.world import World
from . import pieces
from .tensors import Sharded, map_tensors

_KEPT = frozenset(("to", "int", "long", "cpu", "cuda", "detach", "clone", "contiguous", "pin_memory"))
"""Functions that leave numbers as they are, on the way to a device."""
OF_SAMPLES, NOT_JOINED = -1, -2
Numbering = dict[int, int]
"""By the place of a tensor in a batch: the place of the tensor whose rows its numbers count, or OF_SAMPLES.

NOT_JOINED is a tensor that cannot be put together from the ranks' parts, such as edges in dim 1.
"""


class Numbered(Sharded):
    """Numbers that count from the begin of each rank's part."""

    shift: int | None
    """What the numbers of this rank have in addition in the whole batch; None if the parts cannot be put together."""
    num_samples: tuple[int, ...]
    """The number of samples on each rank, which a model may return a row for; empty if the numbers count other rows."""

    @staticmethod
    def __new__(
        cls: object, local: torch.Tensor, world: World, rows: Sequence[int], shift: int | None,
        num_samples: tuple[int, ...] = (),
    ) -> "Numbered":  # fmt: skip
        self: Numbered = Sharded.__new__(cls, local, world, rows)  # type: ignore[assignment]
        self.shift, self.num_samples = shift, num_samples
        return self

    @property
    def shown(self) -> Sharded:
        if self.shift is None:
            raise ScalingError(
                "the collate function joins samples, but not row by row: outside of a model, a tensor "
                "of the batch (of "
                f"shape {tuple(self.local.shape)} on rank {self.world.rank}) cannot be put together "
                "from the parts of the ranks",
                "use it inside of the model, as an argument; or start one rank: echelon run -n 1 …",
            )
        return Sharded(self.local + self.shift, self.world, self.rows)

    def whole(self) -> torch.Tensor:
        return self.shown.whole()


def samples_among(leads: list[Sharded]) -> list[Sharded]:
    """Return the samples that numbers among a model's arguments count, as rows like those of `leads`."""
    counts = {one.num_samples: one for one in leads if isinstance(one, Numbered) and one.num_samples}
    return [
        Sharded(one.local.new_empty(max(num_samples[one.world.rank], 1)), one.world, num_samples)
        for num_samples, one in counts.items()
    ]


def shift(counted: int, rows: tuple[int, ...], counts: Sequence[tuple[int, ...]], rank: int) -> int | None:
    """Return how many samples, or rows of a tensor, come before those of a rank; None for what is not joined."""
    if counted == NOT_JOINED:
        return None
    return sum((rows if counted == OF_SAMPLES else counts[counted])[:rank])


def convert(func: Function, name: str, args: Args, kwargs: Kwargs) -> Any | None:
    """Return numbers on another device or of another type; None for a function that does something else."""
    tensor: Any = args[0] if args else None
    if isinstance(tensor, pieces.Pieces) and isinstance(tensor.parts[0], Numbered) and name in _KEPT:
        return pieces.of([convert(func, name, (part, *args[1:]), kwargs) for part in tensor.parts])
    if not isinstance(tensor, Numbered) or name not in _KEPT:
        return None
    numbers = func(tensor.local, *args[1:], **kwargs)
    return Numbered(numbers, tensor.world, tensor.rows, tensor.shift, tensor.num_samples)


def show(args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Return the arguments with all numbers as they are in the whole batch."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, Numbered):
            return tensor.shown
        if isinstance(tensor, pieces.Pieces) and isinstance(tensor.parts[0], Numbered):
            return pieces.Pieces([part.shown for part in tensor.parts])
        return tensor

    shown: tuple[Args, Kwargs] = map_tensors((args, kwargs), change)
    return shown
