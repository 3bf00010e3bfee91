"""Tensors that ranks spread in many ways, and make whole again."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from echelon.train import wholes


def made_whole(most_bytes: int) -> tuple[list[bool], int]:
    """Return whether each tensor has the bits that it had before it was spread, and how many messages that took."""
    wholes.MOST_BYTES = most_bytes
    torch.manual_seed(0)
    given = list(_spread())
    sent: list[Any] = []
    all_gather = dist.all_gather
    dist.all_gather = lambda *args, **settings: sent.append(args) or all_gather(*args, **settings)  # type: ignore[func-returns-value]
    found = list(wholes.each_whole([tensor for _, tensor in given]))
    dist.all_gather = all_gather
    assert len(found) == len(given)
    return [
        torch.equal(one, whole) and one.dtype == whole.dtype for one, (whole, _) in zip(found, given, strict=True)
    ], len(sent)


def _spread() -> Any:
    """Yield tensors, and what a rank holds of each."""
    line = init_device_mesh("cpu", (4,))
    square = init_device_mesh("cpu", (2, 2))
    for shape, dim in (
        ((8, 3), 0),
        ((5, 3), 0),
        ((2, 7), 0),
        ((1,), 0),
        ((3, 8), 1),
        ((3, 6, 2), 1),
        ((9,), 0),
        ((4, 1, 2), 2),
    ):
        tensor = torch.randn(shape)
        yield tensor, distribute_tensor(tensor, line, [Shard(dim)])
    plain = torch.randn(3, 3)
    yield plain, plain
    yield plain, distribute_tensor(plain, line, [Replicate()])
    for other in (torch.arange(10), torch.randn(6, 2).bfloat16(), torch.rand(7) > 0.5, torch.zeros(0, 3)):
        yield other, distribute_tensor(other, line, [Shard(0)])
    for placements in ([Replicate(), Shard(0)], [Shard(1), Replicate()], [Shard(0), Shard(1)], [Shard(0), Shard(0)]):
        yield plain, distribute_tensor(plain, square, placements)
    yield plain, DTensor.from_local(plain if not dist.get_rank() else plain * 0, line, [Partial()])
