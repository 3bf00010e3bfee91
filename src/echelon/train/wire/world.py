"""This rank, its device and its communication with other ranks; acts of a single rank; the end of all ranks."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist

from ...orders import checkpoint, records
from ..scaling_error import ScalingError
from . import device as devices
from . import groups

SEED_OF_RECORDS = 20_260_701


class World(NamedTuple):
    """This rank's place among the ranks that share a batch.

    With `--exact V` these are V virtual shards, of which each process computes `hosted`; `rank` is its first.
    """

    rank: int
    size: int
    device: torch.device
    hosted: int = 1
    graph_cuts: Any = None
    """The links between the graphs of virtual shards."""
    together: Any = None
    """The World of the ranks that split a model, each with the whole batch; None if no model is split."""

    @property
    def is_exact(self) -> bool:
        """Whether a batch is computed in virtual shards."""
        return self.graph_cuts is not None

    @property
    def is_alone(self) -> bool:
        return self.size == 1 and self.together is None

    @property
    def processes(self) -> "World":
        """Return this process's place among the processes."""
        if self.together is not None:
            world: World = self.together
            return world
        if not self.is_exact:
            return self
        return World(self.rank // self.hosted, self.size // self.hosted, self.device)

    def shards(self) -> "list[World]":
        """Return the place of each shard that this process computes."""
        return [self._replace(rank=self.rank + place) for place in range(self.hosted)]


def read(environ: Mapping[str, str], num_shards: int = 0, graph_cuts: object = None) -> World:
    """Return the place that the launcher gives; a script without a launcher has a world of size one.

    Virtual shards have `graph_cuts`, which link their graphs.
    """
    local_rank = int(environ.get("LOCAL_RANK", "0"))
    device = devices.of_rank(local_rank)
    rank, size = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
    if not num_shards:
        return World(rank, size, device)
    hosted = num_shards // size
    return World(rank * hosted, num_shards, device, hosted, graph_cuts)


def of_split(world: World) -> World:
    """Return the place of a rank that has every batch whole, and computes a part of the model."""
    return World(0, 1, world.device, together=world) if world.size > 1 else world


def join(world: World) -> None:
    """Meet the other ranks, once; a single rank meets nobody."""
    if not world.is_alone and not dist.is_initialized():
        groups.form(world.device)


def mean(world: World, value: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
    """Return the mean over all ranks, each with its weight; the mean of the weights must be 1."""
    if world.size == 1:
        return value.detach().clone()
    total = value.detach() * (weight / world.size)
    dist.all_reduce(total)
    return total


def barrier(world: World) -> None:
    if not world.is_alone:
        join(world)
        dist.barrier()


def seed_of_run(environ: Mapping[str, str]) -> int:
    """Return a seed that all ranks of one attempt share, and no other run; runs that are compared share it too."""
    if records.VARIABLE in environ:
        return SEED_OF_RECORDS
    if environ.get(checkpoint.SEED):
        return int(environ[checkpoint.SEED])
    text = environ.get("ECHELON_RUN_ID", "") or str(os.getpid())
    return checkpoint.seed(text, int(environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0))


_acts: list[str] = []


@contextmanager
def alone(act: str) -> Iterator[None]:
    """Mark a block as an act that other ranks do not perform."""
    _acts.append(act)
    try:
        yield
    finally:
        _acts.pop()


def is_alone() -> bool:
    return bool(_acts)


def refuse_exchange() -> None:
    if _acts:
        raise ScalingError(
            f"only rank 0 does {_acts[-1]}, and it needs the parts of a batch that other ranks hold; the other ranks "
            "do not take part",
            "compute the value before you write it: a number by .item(), a tensor by .cpu().numpy()",
        )


PATIENCE_SECONDS = 20.0  # for ranks that have not finished the last step
_open = open  # before it is hooked: each rank writes its own file


def mark_last_step(folder: str, rank: int, step: int) -> None:
    """Write that this rank has made its last step."""
    with _open(os.path.join(folder, f"ended-{rank}"), "w") as file:
        file.write(f"{step}\n")


def end_with_others(folder: str, num_ranks: int) -> NoReturn:
    """Wait until all ranks have left word in the folder, and end this process with exit code 0."""
    try:
        wanted = [os.path.join(folder, f"ended-{rank}") for rank in range(num_ranks)]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and not all(os.path.exists(path) for path in wanted):
            time.sleep(0.005)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    finally:
        os._exit(0)  # other ranks may not be ready
