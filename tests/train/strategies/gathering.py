"""What ranks do to show that each gets what all have."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from echelon.train.strategies import versions
from echelon.train.strategies.strategy import Strategy
from echelon.train.wire import gather as wire_gather


def rows() -> torch.Tensor:
    return torch.arange(dist.get_world_size(), dtype=torch.float64)[:, None] * 1000 + torch.arange(3)


def gathered() -> bool:
    parts = torch.full_like(rows(), -1)
    parts[dist.get_rank()] = rows()[dist.get_rank()]
    wire_gather.gather(parts, dist.group.WORLD)
    return torch.equal(parts, rows())


def beside_own_message() -> list[float]:
    """Wait for a message that the other rank sends after it has gathered; return what came."""
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    own, theirs = torch.full((3,), float(rank)), torch.empty(3)
    coming: Any = dist.irecv(theirs, other)
    assert gathered()
    dist.send(own, other)
    coming.wait()
    return theirs.tolist()


def sums(size: int) -> list[str]:
    """Return the bits of a sum over all ranks, and of one over a few; the addends are left as they are."""
    group = dist.new_group([1, 2, 4])
    own = torch.randn(size, generator=torch.Generator().manual_seed(dist.get_rank()), dtype=torch.float64)
    before = own.clone()
    found = [wire_gather.total(own).numpy().tobytes().hex()]
    if dist.get_rank() in (1, 2, 4):
        found.append(wire_gather.total(own.view(-1, 1), group).numpy().tobytes().hex())
    assert torch.equal(own, before)
    return found


def spread(local_size: str, width: int) -> tuple[int, bool]:
    """Use a model that fully_shard has spread; return how often it gathered by turns, and whether its loss is right."""
    from torch.distributed.fsdp import fully_shard

    versions.check(Strategy(shard=3), torch.device("cpu"))
    os.environ["LOCAL_WORLD_SIZE"] = local_size
    torch.manual_seed(0)
    model, inputs, seen = nn.Sequential(nn.Linear(width, width), nn.Linear(width, 1)), torch.ones(2, width), []
    expected = model(inputs).sum().item()
    for module in (model[0], model):
        fully_shard(module)
    wire_gather.install(model, torch.device("cpu"))
    gather = wire_gather.gather

    def see(parts: torch.Tensor, group: Any) -> None:
        seen.append(parts.size(0))
        gather(parts, group)

    wire_gather.gather = see
    loss = model(inputs).sum()
    loss.backward()
    return len(seen), abs(loss.item() - expected) < 1e-4
