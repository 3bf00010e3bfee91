"""Which rank this is, on which device, and how ranks speak with each other."""

import os
from typing import Mapping, NamedTuple

import torch
import torch.distributed as dist

SEED_OF_RECORDS = 20_260_701


class World(NamedTuple):
    """This rank's place."""

    rank: int
    size: int
    device: torch.device


def read(environ: Mapping[str, str]) -> World:
    """Return the place that the launcher gives; a script started by itself is a world of one."""
    local_rank = int(environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    return World(rank=int(environ.get("RANK", "0")), size=int(environ.get("WORLD_SIZE", "1")), device=device)


def join(world: World) -> None:
    """Meet the other ranks, once; alone there is nobody to meet."""
    if world.size > 1 and not dist.is_initialized():
        if world.device.type == "cuda":
            torch.cuda.set_device(world.device)
        dist.init_process_group("cpu:gloo,cuda:nccl" if world.device.type == "cuda" else "gloo")


def mean(world: World, value: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
    """Return the mean over all ranks, each with its weight (whose own mean must be 1)."""
    if world.size == 1:
        return value.detach().clone()
    total = value.detach() * (weight / world.size)
    dist.all_reduce(total)
    return total


def barrier(world: World) -> None:
    """Wait for all ranks."""
    if world.size > 1:
        join(world)
        dist.barrier()


def seed_of_run(environ: Mapping[str, str]) -> int:
    """Return a seed that all ranks of one attempt share and no other run does; runs to be compared share it too."""
    if environ.get("ECHELON_RECORD"):
        return SEED_OF_RECORDS
    text = environ.get("ECHELON_RUN_ID", "") or str(os.getpid())
    attempt = int(environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0)
    number = int(text, 16) if all(letter in "0123456789abcdef" for letter in text) else int(text, 36)
    return (number + attempt) % (1 << 31)
