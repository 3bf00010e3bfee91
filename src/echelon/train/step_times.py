"""Note the time of each step for `echelon bench scaling`, and end all ranks after the last step that it asks for."""

import atexit
import os
import sys
import time
from collections.abc import Mapping
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from ..orders import bench
from ..orders.bench import BenchOrder
from . import events, patches
from .function_types import Function
from .wire import device as devices
from .wire import world

_open = open  # before it is hooked: ranks share the files of a script, and this one is of rank 0
PREFETCH_FACTOR = 2
"""PyTorch's default: torch.utils.data.DataLoader."""
_OTHER_MEETINGS = ("horovod", "mpi4py")
_EVERY_SECONDS = 1.0
"""How often the record is written: a run that is killed loses the last second."""


class StepTimes:
    """The seconds between the steps of this rank's optimizers; rank 0 writes them."""

    def __init__(self, order: BenchOrder, rank: int, num_ranks: int) -> None:
        self._order = order
        self._rank, self._num_ranks = rank, num_ranks
        self._pid = os.getpid()
        self._step = 0
        self._last = self._written = time.perf_counter()
        self._lines: list[str] = []

    def stepped(self, *_: object) -> None:
        if os.getpid() != self._pid:
            return  # a fork of the script's own
        self._step += 1
        is_last = 0 < self._order.steps <= self._step
        if is_last or self._step == self._order.warm_up:
            devices.synchronize_used()
        now = time.perf_counter()
        if self._step == 2 and self._rank == 0 and self._num_ranks > 1 and not _have_met():
            _open(os.path.join(self._order.folder, bench.ALONE_FILE), "w").close()
        if self._step > 1 and self._rank == 0:
            self._lines.append("%.9f\n" % (now - self._last))
        self._last = now
        if now - self._written >= _EVERY_SECONDS:
            self.write()
        if is_last:
            self.write()
            world.mark_last_step(self._order.folder, self._rank, self._step)
            world.end_with_others(self._order.folder, self._num_ranks)

    def write(self) -> None:
        self._written = time.perf_counter()
        if self._lines and os.getpid() == self._pid:
            with _open(os.path.join(self._order.folder, bench.SECONDS_FILE), "a") as file:
                file.write("".join(self._lines))
            self._lines.clear()


def _have_met() -> bool:
    """Say whether the ranks know each other, by torch.distributed or by a library that does without it."""
    is_joined = dist.is_available() and dist.is_initialized()
    return is_joined or any(name in sys.modules for name in _OTHER_MEETINGS)


def begin(environ: Mapping[str, str]) -> None:
    order = bench.read(environ)
    if order is None:
        return
    times = StepTimes(order, int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1")))

    events.after_step.listen("bench", times.stepped, why="A benchmark notes the time of each step.")
    atexit.register(times.write)
    if order.loader_workers:
        _raise_workers(order.loader_workers)


def _raise_workers(number: int) -> None:
    """Give each DataLoader at least this many workers; of a stream, each worker might read all samples."""
    construct: Function = DataLoader.__init__

    @wraps(construct)
    def construct_with_workers(self: Any, *arguments: object, **options: object) -> None:
        construct(self, *arguments, **options)
        if not isinstance(self.dataset, IterableDataset):
            self.num_workers = max(number, self.num_workers)
            self.prefetch_factor = self.prefetch_factor or PREFETCH_FACTOR

    patches.replace(DataLoader, "__init__", construct_with_workers, why="A trial measures steps with more workers.")
