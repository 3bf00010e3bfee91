"""Tensors that ranks spread in many ways, and make whole again."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from echelon.train import fsdp
from echelon.train.wire import gather as gather_module


def made_whole(most_bytes: int) -> tuple[list[bool], int]:
    """Return whether each tensor has the bits that it had before it was spread, and how many messages that took."""
    gather_module.MOST_BYTES = most_bytes
    torch.manual_seed(0)
    given = list(_spread())
    sent = counted()
    found = list(gather_module.each_whole([tensor for _, tensor in given]))
    assert len(found) == len(given)
    are_equal = [
        torch.equal(one, whole) and one.dtype == whole.dtype for one, (whole, _) in zip(found, given, strict=True)
    ]
    return are_equal, len(sent)


def counted() -> list[Any]:
    """Return a list that grows by each message of many tensors."""
    sent: list[Any] = []
    all_gather = gather_module.all_gather

    def gather(*args: Any, **settings: Any) -> Any:
        sent.append(args)
        return all_gather(*args, **settings)

    gather_module.all_gather = gather
    return sent


def of_a_mesh_of_others() -> list[bool]:
    """Return whether the ranks of a mesh of two make their tensors whole, while the other two have nothing to send."""
    mesh = DeviceMesh("cpu", [0, 1])
    given = torch.arange(12.0).view(6, 2)
    tensors = [distribute_tensor(given + place, mesh, [Shard(0)]) for place in range(2)]
    is_member = mesh.get_coordinate() is not None
    return [torch.equal(one, given + place) == is_member for place, one in enumerate(gather_module.each_whole(tensors))]


def state_of_nested_modules() -> tuple[bool, int, int]:
    """Return whether model.state_dict() of a scaled run is whole, in how many messages, and of how many tensors."""
    model = nn.Sequential(
        nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4)), nn.Sequential(nn.Sequential(nn.Linear(4, 2)))
    )
    expected = {name: one.clone() for name, one in model.state_dict().items()}
    for one in expected.values():
        dist.broadcast(one, 0)
    model.load_state_dict(expected)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    fsdp.install()
    sent = counted()
    state = model.state_dict()
    return all(torch.equal(state[name], one) for name, one in expected.items()), len(sent), len(state)


def state_that_a_hook_asks_for() -> bool:
    """Return whether a state is whole that a hook asks for while another is being made."""
    inner, outer, kept = nn.Linear(4, 6), nn.Linear(2, 2), []
    fully_shard(inner, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    fsdp.install()
    outer._register_state_dict_hook(lambda *_: kept.append(inner.state_dict()))
    nn.Sequential(outer).state_dict()
    return kept[0]["weight"].shape == (6, 4) and not gather_module.is_sharded(kept[0]["weight"])


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
    for other in (torch.arange(10), torch.randn(6, 2).bfloat16(), torch.rand(7) > 0.5, torch.randn(5) * 1j):
        for one in (other, other.flip(0)):
            yield one, distribute_tensor(one, line, [Shard(0)])
    nothing = torch.zeros(0, 3)
    yield nothing, distribute_tensor(nothing, line, [Shard(0)])
    across = torch.randn(7, 9).t()
    yield across, distribute_tensor(across, line, [Shard(1)])
    for placements in ([Replicate(), Shard(0)], [Shard(1), Replicate()], [Shard(0), Shard(1)], [Shard(0), Shard(0)]):
        for one in (plain, plain + 1):
            yield one, distribute_tensor(one, square, placements)
    yield plain, DTensor.from_local(plain if not dist.get_rank() else plain * 0, line, [Partial()])
