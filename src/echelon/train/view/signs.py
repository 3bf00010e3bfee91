"""Whether the integers of a batch are all zero or more, asked of all ranks while the model still computes.

A mean over classes leaves out targets such as -100, so it must be known how many count on all ranks before gradients
can be computed. Where a loader's integers are known to have no such target the shapes tell, and no rank waits.
"""

from typing import Any, Callable, List, NamedTuple, Optional

import torch
import torch.distributed as dist

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

    of: "Signs"
    are_natural: Callable[[], bool]
    version: int


class Signs:
    """Asks for the integers of one loader, if a loss has wanted to know."""

    def __init__(self) -> None:
        self._is_wanted = False

    def ask(self, tensors: List[torch.Tensor]) -> None:
        """Begin to exchange what the integers of the present batch are; every rank has as many such tensors."""
        views = [one for one in tensors if isinstance(one, Sharded) and _is_integer(one) and one.device.type == "cpu"]
        wait = _start(views) if self._is_wanted and views else _unknown
        for view in views:
            view.sign = Sign(self, wait, version_of(view.local))

    def want(self) -> None:
        """Ask from the next batch on."""
        self._is_wanted = True


def carry(name: str, source: Any, result: Any) -> None:
    """Let what a function makes of a tensor's elements have its sign."""
    are_views = isinstance(source, Sharded) and isinstance(result, Sharded) and result is not source
    if are_views and name in _KEEPS and _is_integer(result) and (sign := _valid(source)) is not None:
        result.sign = sign._replace(version=version_of(result.local))


def are_natural(target: Sharded) -> bool:
    """Say whether all of its elements are zero or more on all ranks; False where that is not known."""
    sign = _valid(target)
    if sign is None:
        return False
    sign.of.want()
    return sign.are_natural()


def _valid(view: Sharded) -> Optional[Sign]:
    sign: Optional[Sign] = view.sign
    return sign if sign is not None and sign.version == version_of(view.local) >= 0 else None


def _is_integer(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32)


def _unknown() -> bool:
    return False


def _start(views: List[Sharded]) -> Callable[[], bool]:
    least = torch.stack([one.local.min().long() if one.local.numel() else torch.tensor(0) for one in views]).min()
    work = dist.all_reduce(least, op=dist.ReduceOp.MIN, async_op=True)

    def wait() -> bool:
        work.wait()
        return int(least) >= 0

    return wait
