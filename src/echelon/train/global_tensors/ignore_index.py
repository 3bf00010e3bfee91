"""Whether the integers of a batch are all zero or more, so that a mean over classes leaves none of them out.

What such a mean is divided by, the targets but for those such as -100, must be known of all ranks. As long as no rank
has seen one that is left out, all are assumed to count (`Assumption`): the numbers that tell travel with the value of
the loss, while gradients are computed; where they tell otherwise, gradients are multiplied by what is missing. A loss
that is added to another must be right before, and on a GPU nobody can look at a number without waiting for all of it:
there the ranks ask each other for the integers of each batch when it is loaded.
"""

from typing import Any, Callable, List, NamedTuple, Optional

import torch
import torch.distributed as dist

from .. import device as devices
from .tensors import Sharded, version_of

_KEEPS = frozenset(
    (
        "to", "type", "long", "int", "cpu", "cuda", "pin_memory", "clone", "detach", "contiguous",
        "view", "reshape", "flatten", "squeeze", "unsqueeze", "__getitem__", "permute", "transpose",
    )
)  # fmt: skip
"""Functions whose result has no other elements than what they are given."""


class Sign(NamedTuple):
    """What is known of the elements of one tensor, as long as nobody writes to it."""

    of: "IgnoreIndex"
    are_natural: Callable[[], bool]
    version: int


class IgnoreIndex:
    """Asks for the integers of one script's batches, if a loss has wanted to know."""

    def __init__(self) -> None:
        self._is_wanted = False

    def ask(self, tensors: List[torch.Tensor]) -> None:
        """Begin to exchange what the integers of the present batch are; every rank has as many such tensors."""
        integers = [
            one
            for one in tensors
            if isinstance(one, Sharded) and _is_integer(one) and not devices.is_accelerator(one.device)
        ]
        wait = _start(integers) if self._is_wanted and integers else _unknown
        for tensor in integers:
            tensor.known_sign = Sign(self, wait, version_of(tensor.local))

    def want(self) -> None:
        """Ask from the next batch on."""
        self._is_wanted = True

    @property
    def may_assume(self) -> bool:
        """Whether nobody has needed to know."""
        return not self._is_wanted


class Assumption:
    """That all targets of a mean count: the doubt of a loss."""

    def __init__(self, ignore_index: IgnoreIndex, num_targets: int, num_counted: torch.Tensor) -> None:
        self._signs = ignore_index
        self._num_targets = num_targets  # of all ranks
        self._num_counted = num_counted  # of this one
        self.factor: Optional[float] = None
        """By what the loss must be multiplied, once the ranks have met."""

    def start(self, part: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Begin to exchange a part of the loss, and how many targets count; what waits returns the true loss."""
        numbers = torch.stack((part.double(), self._num_counted.double()))
        work = dist.all_reduce(numbers, async_op=True)

        def wait() -> torch.Tensor:
            work.wait()
            return (numbers[0] * self._settled(float(numbers[1]))).to(part.dtype)

        return wait

    def hurry(self) -> None:
        """Notice a loss whose factor was needed before gradients were computed: the next is asked for in time."""
        self._signs.want()

    def _settled(self, num_counted: float) -> float:
        if num_counted != self._num_targets:
            self._signs.want()  # for what happened once happens again
        self.factor = self._num_targets / num_counted if num_counted else float("nan")
        return self.factor


def carry(name: str, source: Any, result: Any) -> None:
    """Let what a function makes of a tensor's elements have its sign."""
    are_sharded = isinstance(source, Sharded) and isinstance(result, Sharded) and result is not source
    if are_sharded and name in _KEEPS and _is_integer(result) and (sign := _valid(source)) is not None:
        result.known_sign = sign._replace(version=version_of(result.local))


def are_natural(target: Sharded) -> bool:
    """Say whether all of its elements are zero or more on all ranks; False where that is not known."""
    sign = _valid(target)
    return sign is not None and sign.are_natural()


def assume(target: Sharded, num_targets: int, num_counted: torch.Tensor) -> Optional[Assumption]:
    """Return the assumption that all targets count; None where it may not be made, and then ask from now on."""
    sign = _valid(target)
    if sign is None:
        return None
    if sign.of.may_assume and not devices.is_accelerator(target.device):
        return Assumption(sign.of, num_targets, num_counted)
    sign.of.want()
    return None


def _valid(tensor: Sharded) -> Optional[Sign]:
    sign: Optional[Sign] = tensor.known_sign
    return sign if sign is not None and sign.version == version_of(tensor.local) >= 0 else None


def _is_integer(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32)


def _unknown() -> bool:
    return False


def _start(tensors: List[Sharded]) -> Callable[[], bool]:
    least = torch.stack([one.local.min().long() if one.local.numel() else torch.tensor(0) for one in tensors]).min()
    work = dist.all_reduce(least, op=dist.ReduceOp.MIN, async_op=True)

    def wait() -> bool:
        work.wait()
        return int(least) >= 0

    return wait
