"""Ranks that train, with bits that flip: the functions that each rank of `test_bit_watch` calls."""

import faulthandler
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from tests.train.strategies import ranks
from torch import nn

from echelon.orders.scale import ScaleOptions
from echelon.train.check.bit_watch import BitWatch, FlippedBits
from echelon.train.wire.world import World

BETWEEN = 10
"""The steps between two checkpoints."""
NUM_STEPS = 24
KINDS = ("weight", "gradient", "state")
"""A flipped bit of a message is one of the gradient that a rank has got."""


def nothing() -> None:
    """Alter nothing."""


def _training(rank: int, size: int, seed: int) -> tuple[Any, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    parallelism = SimpleNamespace(
        num_steps=0, is_local=False, known_parameters=lambda: list(model.parameters()),
        agreed_optimizers=lambda: [optimizer],
    )  # fmt: skip
    run = SimpleNamespace(
        world=World(rank, size, torch.device("cpu")), parallelism=parallelism, options=ScaleOptions(watches_bits=True)
    )
    return run, model, optimizer


def _step(
    run: Any, watch: BitWatch, model: nn.Module, optimizer: torch.optim.Optimizer, flip: Callable[[], None]
) -> None:
    """Compute a step of this rank's rows; `flip` may alter what the exchange of gradients has left."""
    optimizer.zero_grad()
    model(torch.randn(4, 6) + run.world.rank).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    flip()
    run.parallelism.num_steps += 1
    watch.before_step(optimizer)
    optimizer.step()


def _flip(tensor: torch.Tensor, chance: random.Random) -> None:
    flat = tensor.detach().view(-1).view(torch.int32)
    bit = chance.randrange(32)
    flat[chance.randrange(flat.numel())] ^= (1 << bit) if bit < 31 else -(1 << 31)


def flipped(number: int) -> tuple[str, int, str]:
    """Train with a flipped bit on one rank; return the kind, the rank, and what was said before a checkpoint."""
    chance = random.Random(number)
    rank, size = dist.get_rank(), dist.get_world_size()
    kind, where, at = KINDS[number % len(KINDS)], chance.randrange(size), chance.randrange(4, NUM_STEPS - 4)
    run, model, optimizer = _training(rank, size, number)
    watch = BitWatch(run)
    parameter = chance.choice(list(model.parameters()))

    def flip() -> None:
        if rank == where:
            _flip(parameter.grad, chance)

    said = ""
    try:
        for step in range(NUM_STEPS):
            _step(run, watch, model, optimizer, flip if step == at and kind == "gradient" else nothing)
            if step == at and rank == where and kind in ("weight", "state"):
                _flip(parameter if kind == "weight" else optimizer.state[parameter]["exp_avg"], chance)
            if step % BETWEEN == BETWEEN - 1 or step == NUM_STEPS - 1:
                watch.compare_all()
                if step > at:
                    break
    except FlippedBits as error:
        said = str(error)
    return kind, where, said


def healthy(num_steps: int) -> int:
    """Train without a fault; return the number of steps, as no difference was found."""
    run, model, optimizer = _training(dist.get_rank(), dist.get_world_size(), 0)
    watch = BitWatch(run)
    for step in range(num_steps):
        _step(run, watch, model, optimizer, nothing)
        if step % 100 == 99:
            watch.compare_all()
            faulthandler.dump_traceback_later(ranks.SECONDS, exit=True)  # once more: so many steps take their time
    return int(run.parallelism.num_steps)
