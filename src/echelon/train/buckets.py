"""Gradient buckets: their size from measurements, their order from a backward pass, their compression in transit.

DDP sends a bucket as soon as its gradients are computed. If one bucket holds most of the model, it is sent when there
is nothing left to compute, and nothing overlaps. With too many buckets, each costs its own latency. Buckets only
regroup the sums: with two ranks no bit changes, with more ranks the order of the sums changes.

The order in which a backward pass finishes gradients, and buckets of DistributedDataParallel that have it at once.

DDP sorts its buckets after its first backward pass, so the sums of that pass have another order than those of later
ones. A training that goes on from a checkpoint is to have the same sums as one that was never disturbed.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import backward  # itself, before it is replaced
from torch.nn.parallel import DistributedDataParallel

from ..pytorch import distributed, internals
from .wire import device as devices
from .wire import groups
from .wire.world import World

DEFAULT_MEGABYTES = 25.0
"""DDP's own size (torch.nn.parallel.distributed._DEFAULT_BUCKET_CAP_MB)."""
_OTHERS = (4.0, 1.0)
_MEGABYTE = 1 << 20
_NUM_SKIPPED = 3  # first backward passes: compilers and allocators are busy
_NUM_WARM = 2  # backward passes of each wrapping: DDP sorts its buckets after the first
_NUM_TIMED = 4
_LEAST_GAIN = 0.05  # in both passes; a smaller gain may be chance, and people know DDP's own buckets


class Buckets:
    """Tries the sizes forwards and then backwards, so that a drift over time affects all sizes equally."""

    def __init__(self, world: World, *, megabytes: float = 0.0, say: Callable[[str], None] = lambda _: None) -> None:
        self._world = world
        self._say = say
        self._is_open = not megabytes
        self._current = megabytes or DEFAULT_MEGABYTES
        self._turns: list[float] = []
        self._times: list[list[float]] = []
        self._left = _NUM_SKIPPED

    @property
    def limit(self) -> float | None:
        """The size of a bucket for DDP: with None, DDP makes the first bucket small."""
        return None if self._current == DEFAULT_MEGABYTES else self._current

    def begin(self, parameters: list[torch.nn.Parameter]) -> None:
        """Choose the sizes to try for these gradients, once; small models have none."""
        if not self._is_open or self._turns:
            return
        num_bytes = sum(one.numel() * one.element_size() for one in parameters)
        sizes = [DEFAULT_MEGABYTES, *(one for one in _OTHERS if one * _MEGABYTE < num_bytes)]
        self._turns = [*sizes, *reversed(sizes)]
        is_deterministic = torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic
        self._is_open = len(sizes) > 1 and not is_deterministic
        self._times = [[]]

    @contextmanager
    def timing(self) -> Iterator[None]:
        if not self._is_open:
            yield
            return
        devices.synchronize(self._world.device)
        began = time.perf_counter()
        yield
        devices.synchronize(self._world.device)
        self._times[-1].append(time.perf_counter() - began)

    def are_others_due(self) -> bool:
        """Say whether gradients travel in other buckets from now on."""
        if not self._is_open or len(self._times[-1]) < self._left + _NUM_WARM + _NUM_TIMED:
            return False
        self._left = 0
        before = self._current
        if len(self._times) < len(self._turns):
            self._current = self._turns[len(self._times)]
            self._times.append([])
        else:
            self._decide()
        return self._current != before

    def _decide(self) -> None:
        """Take the fastest size by the slowest rank of each backward pass; all ranks choose the same size."""
        self._is_open = False
        timed = torch.tensor([one[-_NUM_TIMED:] for one in self._times], dtype=torch.float64)
        timed = timed.to(self._world.device)
        dist.all_reduce(timed, op=dist.ReduceOp.MAX)
        rows = [statistics.median(one) for one in timed.tolist()]
        num_sizes = len(rows) // 2
        seconds = {self._turns[at]: (rows[at], rows[-1 - at]) for at in range(num_sizes)}
        self._current = _choose(seconds)
        taken = {size: sum(both) / 2 * 1e3 for size, both in seconds.items()}
        other_times = ", ".join(
            f"{one:.3g} ms with {size:g} MB" for size, one in taken.items() if size != self._current
        )
        self._say(
            f"gradients travel in buckets of {self._current:g} MB: backward() then takes "
            f"{taken[self._current]:.3g} ms, {other_times} (measured in the first {sum(map(len, self._times))})"
        )


def _choose(seconds: dict[float, tuple[float, float]]) -> float:
    usual = seconds[DEFAULT_MEGABYTES]
    faster = [
        size
        for size, both in seconds.items()
        if all(one < other * (1 - _LEAST_GAIN) for one, other in zip(both, usual, strict=False))
    ]
    return min(faster, key=lambda size: sum(seconds[size]), default=DEFAULT_MEGABYTES)


_watch: Any = torch.Tensor.register_post_accumulate_grad_hook


@contextmanager
def noted(parameters: Sequence[nn.Parameter], order: list[int]) -> Iterator[None]:
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
    for one, gradient in zip(parameters, gradients, strict=False):
        one.grad = gradient


ONE_BUCKET_MEGABYTES = float(1 << 20)
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def is_of_matrices(how: str) -> bool:
    """Say whether gradients travel as factors of matrices, which takes several messages in sequence."""
    return how.startswith("powersgd")


def described(how: str) -> str:
    if not how:
        return ""
    if not is_of_matrices(how):
        return f"; gradients travel as {how}"
    return "; gradients travel as powersgd's factors of rank {} from step {} on".format(*tuple(how.split(":")[1:]))


def compress(model: DistributedDataParallel, how: str) -> None:
    """Let gradients travel as "bf16", "fp16" or "powersgd:RANK:STEP"; an empty text leaves them uncompressed."""
    if how in _DTYPES:
        model.register_comm_hook(_DTYPES[how], _narrow)
    elif is_of_matrices(how):
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook  # it needs numpy

        rank, step = (int(one) for one in how.split(":")[1:])
        group = groups.new()  # other threads send its messages, which must not mix with those of the script
        state = powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=rank, start_powerSGD_iter=step)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def _narrow(dtype: torch.dtype, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Exchange the parts of the mean in 16 bits; PyTorch's own bf16 hook refuses CPUs, where it would work."""
    whole = bucket.buffer()
    narrow = whole.to(dtype).div_(dist.get_world_size())

    def widen(sent: Any) -> torch.Tensor:
        result: torch.Tensor = whole.copy_(sent.value()[0])
        return result

    sent = dist.all_reduce(narrow, async_op=True).get_future()
    return sent.then(widen)  # type: ignore[no-any-return]
