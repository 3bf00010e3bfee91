"""Whether all integers of a batch are zero or more, so that a mean over classes ignores no target.

Such a mean is divided by the number of targets that count, on all ranks; targets such as -100 do not count. As long as
no rank has seen an ignored target, all targets are assumed to count (`Assumption`). The true number travels with the
value of the loss while gradients are computed; if the assumption was wrong, the gradients are multiplied by the missing
factor. A loss that is added to another loss must be right before that. On a GPU a number can be read only after all
work before it. In these cases the ranks exchange the signs of a batch's integers when the batch is loaded.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ..wire import device as devices
from .tensors import Sharded, version_of

_KEEPS = frozenset(
    (
        "to", "type", "long", "int", "cpu", "cuda", "pin_memory", "clone", "detach", "contiguous",
        "view", "reshape", "flatten", "squeeze", "unsqueeze", "__getitem__", "permute", "transpose",
    )
)  # fmt: skip
"""Functions whose result has only elements of their argument."""


class Sign(NamedTuple):
    """Whether the elements of one tensor are zero or more; it holds while nobody writes to the tensor."""

    of: "IgnoreIndex"
    are_natural: Callable[[], bool]
    version: int


class IgnoreIndex:
    """The exchange of the signs of a script's batches, which begins when a loss needs them."""

    def __init__(self) -> None:
        self._is_wanted = False

    def ask(self, tensors: list[torch.Tensor]) -> None:
        """Start to exchange the signs of the present batch's integers; every rank has as many integer tensors."""
        integers = [
            one
            for one in tensors
            if isinstance(one, Sharded) and _is_integer(one) and not devices.is_accelerator(one.device)
        ]
        wait = _start(integers) if self._is_wanted and integers else _unknown
        for tensor in integers:
            tensor.known_sign = Sign(self, wait, version_of(tensor.local))

    def want(self) -> None:
        """Exchange signs from the next batch on."""
        self._is_wanted = True

    @property
    def may_assume(self) -> bool:
        """Whether no loss has needed the signs yet."""
        return not self._is_wanted


class Assumption:
    """The assumption that all targets of a mean count; it is the doubt of a loss until the ranks have met."""

    def __init__(self, ignore_index: IgnoreIndex, num_targets: int, num_counted: torch.Tensor) -> None:
        self._signs = ignore_index
        self._num_targets = num_targets  # on all ranks
        self._num_counted = num_counted  # on this rank
        self.factor: float | None = None
        """The factor that makes the loss right; None until the ranks have met."""

    def start(self, part: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Start to sum the parts of the loss and the targets that count; return a function that waits for the loss."""
        numbers = torch.stack((part.double(), self._num_counted.double()))
        work = dist.all_reduce(numbers, async_op=True)

        def wait() -> torch.Tensor:
            work.wait()
            return (numbers[0] * self._settled(float(numbers[1]))).to(part.dtype)

        return wait

    def hurry(self) -> None:
        """Exchange signs from the next batch on: the script needed this loss before gradients were computed."""
        self._signs.want()

    def _settled(self, num_counted: float) -> float:
        if num_counted != self._num_targets:
            self._signs.want()  # a script that ignores targets once does so again
        self.factor = self._num_targets / num_counted if num_counted else float("nan")
        return self.factor


def carry(name: str, source: Any, result: Any) -> None:
    """Give the result of a function the sign of its argument, if it has the same elements."""
    are_sharded = isinstance(source, Sharded) and isinstance(result, Sharded) and result is not source
    if are_sharded and name in _KEEPS and _is_integer(result) and (sign := _valid(source)) is not None:
        result.known_sign = sign._replace(version=version_of(result.local))


def are_natural(target: Sharded) -> bool:
    """Say whether all elements are zero or more on all ranks; False where that is not known."""
    sign = _valid(target)
    return sign is not None and sign.are_natural()


def assume(target: Sharded, num_targets: int, num_counted: torch.Tensor) -> Assumption | None:
    """Return the assumption that all targets count; where it may not be made, return None and exchange signs."""
    sign = _valid(target)
    if sign is None:
        return None
    if sign.of.may_assume and not devices.is_accelerator(target.device):
        return Assumption(sign.of, num_targets, num_counted)
    sign.of.want()
    return None


def _valid(tensor: Sharded) -> Sign | None:
    sign: Sign | None = tensor.known_sign
    return sign if sign is not None and sign.version == version_of(tensor.local) >= 0 else None


def _is_integer(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32)


def _unknown() -> bool:
    return False


def _start(tensors: list[Sharded]) -> Callable[[], bool]:
    least = torch.stack([one.local.min().long() if one.local.numel() else torch.tensor(0) for one in tensors]).min()
    work = dist.all_reduce(least, op=dist.ReduceOp.MIN, async_op=True)

    def wait() -> bool:
        work.wait()
        return int(least) >= 0

    return wait
