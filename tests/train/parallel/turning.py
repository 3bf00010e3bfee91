"""What ranks do to show that they meet in few turns."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from echelon.train import turns
from echelon.train.parallel import versions
from echelon.train.parallel.strategy import Strategy


def rows() -> torch.Tensor:
    return torch.arange(dist.get_world_size(), dtype=torch.float64)[:, None] * 1000 + torch.arange(3)


def gathered() -> bool:
    parts = torch.full_like(rows(), -1)
    parts[dist.get_rank()] = rows()[dist.get_rank()]
    turns.gather(parts, dist.group.WORLD)
    return torch.equal(parts, rows())


def beside_own_message() -> list[float]:
    """A message that is under way to the same rank is not taken for one of ours."""
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    own, theirs = torch.full((3,), float(rank)), torch.empty(3)
    works: list[Any] = [dist.irecv(theirs, other), dist.isend(own, other)]
    assert gathered()
    for work in works:
        work.wait()
    return theirs.tolist()


def sums(size: int) -> list[str]:
    """Return the bits of sums in a group of its own, and whether the addends were left as they are."""
    group = dist.new_group([1, 2, 4])
    own = torch.randn(size, generator=torch.Generator().manual_seed(dist.get_rank()), dtype=torch.float64)
    before = own.clone()
    found = [turns.total(own).numpy().tobytes().hex()]
    if dist.get_rank() in (1, 2, 4):
        found.append(turns.total(own.view(-1, 1), group).numpy().tobytes().hex())
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
    turns.gather_in_few(model, torch.device("cpu"))
    gather = turns.gather

    def see(parts: torch.Tensor, group: Any) -> None:
        seen.append(parts.size(0))
        gather(parts, group)

    turns.gather = see
    loss = model(inputs).sum()
    loss.backward()
    return len(seen), abs(loss.item() - expected) < 1e-4
