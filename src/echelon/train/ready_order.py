"""The order in which a backward pass finishes gradients, and buckets of DistributedDataParallel that have it at once.

DDP sorts its buckets after its first backward pass, so the sums of that pass have another order than those of later
ones. A training that goes on from a checkpoint is to have the same sums as one that was never disturbed.
"""

from contextlib import contextmanager
from typing import Any, Iterator, List, Sequence

import torch
from torch import nn
from torch.autograd import backward  # itself, before it is replaced
from torch.nn.parallel import DistributedDataParallel

from ..pytorch import internals

_watch: Any = torch.Tensor.register_post_accumulate_grad_hook


@contextmanager
def noted(parameters: Sequence[nn.Parameter], order: List[int]) -> Iterator[None]:
    """Add to `order` the places of the parameters as a backward pass finishes their gradients.

    >>> layer, order = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), []
    >>> with noted(list(layer.parameters()), order): backward([layer(torch.ones(1, 2)).sum()])
    >>> order[0] > 1 > order[-1] - 1
    True
    """
    handles = [
        _watch(parameter, lambda _, place=place: order.append(place)) for place, parameter in enumerate(parameters)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def sort_buckets(ddp: DistributedDataParallel, parameters: Sequence[nn.Parameter]) -> None:
    """Let DDP sort its buckets for these parameters, which are in the order of their gradients; gradients stay."""
    if any(map(internals.has_gradient_hooks, parameters)):
        return  # a hook of the script would see gradients of no training
    gradients = [one.grad for one in parameters]
    for one in parameters:
        one.grad = None
    total = torch.zeros((), device=parameters[0].device)
    for one in reversed(parameters):  # backward() goes from the last operation to the first
        total = total + (one * 0).sum().to(total.dtype)
    backward([ddp(total)])
    for one, gradient in zip(parameters, gradients):  # noqa: B905
        one.grad = gradient
