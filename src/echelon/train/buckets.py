"""How many bytes of gradients travel together, measured in the first steps: it depends on model, device and network.

DDP sends a bucket as soon as its gradients are computed. Where one bucket holds most of the model it is sent when there
is nothing left to compute, and nothing overlaps; where there are too many, each costs its own latency. Buckets only
regroup what is summed: with two ranks not a bit changes, with more the order of sums does.
"""

import statistics
import time
from contextlib import contextmanager
from typing import Callable, Dict, Iterator, List, Optional, Tuple

import torch
import torch.distributed as dist

from . import device as devices
from .world import World

DEFAULT_MEGABYTES = 25.0
"""DDP's own (torch.nn.parallel.distributed._DEFAULT_BUCKET_CAP_MB)."""
_OTHERS = (4.0, 1.0)
_MEGABYTE = 1 << 20
_NUM_SKIPPED = 3  # of all: compilers and allocators are busy at first
_NUM_WARM = 2  # of each wrapping: DDP sorts its buckets after the first backward
_NUM_TIMED = 4
_LEAST_GAIN = 0.05  # there and back; what is less may be chance, and DDP's own buckets are what people know


class Buckets:
    """Tries sizes in turns, there and back, so that what changes with time falls on all alike."""

    def __init__(self, world: World, *, megabytes: float = 0.0, say: Callable[[str], None] = lambda _: None) -> None:
        self._world = world
        self._say = say
        self._is_open = not megabytes
        self._current = megabytes or DEFAULT_MEGABYTES
        self._turns: List[float] = []
        self._times: List[List[float]] = []
        self._left = _NUM_SKIPPED

    @property
    def limit(self) -> Optional[float]:
        """The size of a bucket as DDP wants it: with None the first bucket is a small one."""
        return None if self._current == DEFAULT_MEGABYTES else self._current

    def begin(self, parameters: List[torch.nn.Parameter]) -> None:
        """Think of sizes to try for these gradients, once; for small models there are none."""
        if not self._is_open or self._turns:
            return
        num_bytes = sum(one.numel() * one.element_size() for one in parameters)
        sizes = [DEFAULT_MEGABYTES, *(one for one in _OTHERS if one * _MEGABYTE < num_bytes)]
        self._turns = [*sizes, *reversed(sizes)]
        self._is_open = len(sizes) > 1 and not _is_determinism_wanted()
        self._times = [[]]

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Note how long a backward takes, as long as that is wanted."""
        if not self._is_open:
            yield
            return
        devices.synchronize(self._world.device)
        began = time.perf_counter()
        yield
        devices.synchronize(self._world.device)
        self._times[-1].append(time.perf_counter() - began)

    def are_others_due(self) -> bool:
        """Say whether gradients are to travel in other buckets from now on."""
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
        """Take the size that was fastest, by the slowest rank of each backward: all ranks come to the same."""
        self._is_open = False
        timed = torch.tensor([one[-_NUM_TIMED:] for one in self._times], dtype=torch.float64)
        timed = timed.to(self._world.device)
        dist.all_reduce(timed, op=dist.ReduceOp.MAX)
        rows = [statistics.median(one) for one in timed.tolist()]
        num_sizes = len(rows) // 2
        seconds = {self._turns[at]: (rows[at], rows[-1 - at]) for at in range(num_sizes)}
        self._current = _choose(seconds)
        taken = {size: sum(both) / 2 * 1e3 for size, both in seconds.items()}
        others = ", ".join("%.3g ms with %g MB" % (one, size) for size, one in taken.items() if size != self._current)
        self._say(
            "gradients travel in buckets of %g MB: backward() then takes %.3g ms, %s (measured in the first %d)"
            % (self._current, taken[self._current], others, sum(map(len, self._times)))
        )


def _is_determinism_wanted() -> bool:
    """Say whether a script asks for the same bits each time, in either of PyTorch's ways."""
    return torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic


def _choose(seconds: Dict[float, Tuple[float, float]]) -> float:
    """Return the size that was fastest among those that were faster than DDP's own both there and back."""
    usual = seconds[DEFAULT_MEGABYTES]
    faster = [
        size
        for size, both in seconds.items()
        if all(one < other * (1 - _LEAST_GAIN) for one, other in zip(both, usual))  # noqa: B905
    ]
    return min(faster, key=lambda size: sum(seconds[size]), default=DEFAULT_MEGABYTES)
