"""What ranks do in the tests: save and load models that are replicated or sharded."""

import os
import resource
import threading
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from echelon.checkpoint import shards
from echelon.checkpoint.errors import CheckpointError
from echelon.checkpoint.saver import Saver


class Model(nn.Module):
    """Weights whose sizes no number of ranks divides, a tied weight and buffers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(7, 5)
        self.layers = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight


def named(model: nn.Module) -> dict[str, torch.Tensor]:
    return {f"model-0/{name}": tensor for name, tensor in model.state_dict().items()}


def make(kind: str, seed: int) -> nn.Module:
    model = Model(seed)
    if kind == "fsdp":
        fully_shard(model.layers, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    elif kind == "hsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("r", "s")))
    return model


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def save(kind: str, folder: str) -> list[str]:
    shards.save(named(make(kind, 1)), folder)
    return sorted(os.listdir(folder))


def load(kind: str, folder: str) -> bool:
    """Load into other weights; say whether they are those that were saved."""
    model = make(kind, 2)
    left = shards.load(named(model), folder)
    expected = named(Model(1))
    return left == [] and all(torch.equal(whole(one), expected[name]) for name, one in named(model).items())


PLACEMENTS: dict[str, list[Any]] = {
    "rows": [Shard(0)],
    "columns": [Shard(1)],
    "copies": [Replicate()],
}


def save_dtensors(folder: str) -> int:
    """Save one tensor in each placement; return the bytes that this rank has written."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole_one = torch.arange(35.0).reshape(5, 7)
    shards.save({name: distribute_tensor(whole_one, mesh, one) for name, one in PLACEMENTS.items()}, folder)
    return os.path.getsize(os.path.join(folder, f"rank-{dist.get_rank()}.safetensors"))


def load_dtensors(folder: str) -> bool:
    """Load each tensor in another placement than it was saved in."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    names = list(PLACEMENTS)
    empty = {
        name: distribute_tensor(torch.zeros(5, 7), mesh, PLACEMENTS[names[index - 1]])
        for index, name in enumerate(names)
    }
    shards.load(empty, folder)
    return all(torch.equal(whole(one), torch.arange(35.0).reshape(5, 7)) for one in empty.values())


def fail_on_one_rank(folder: str) -> str:
    """One rank has a tensor that cannot be saved."""
    tensors = {"a": torch.ones(2) if dist.get_rank() else torch.ones(2).to_sparse()}
    try:
        shards.save(tensors, folder)
    except CheckpointError as error:
        return error.message
    return ""


def save_partial(folder: str) -> str:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    try:
        shards.save({"a": DTensor.from_local(torch.ones(2), mesh, [Partial()])}, folder)
    except CheckpointError as error:
        return error.message
    return ""


def peak_of_sharded(folder: str, megabytes: int) -> tuple[int, int]:
    """Save and load a tensor that is sharded; return the bytes of memory that saving and loading took."""
    shards.save({"a": torch.ones(1)}, folder + "-warm")
    shards.load({"a": torch.ones(1)}, folder + "-warm")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    shard = torch.ones(megabytes, 1 << 18).div_(3)
    tensor = DTensor.from_local(shard, mesh, [Shard(0)])
    dist.barrier()
    before, anonymous = _peak_bytes(), _anonymous_bytes()
    shards.save({"a": tensor}, folder)
    after_save = _peak_bytes()
    shard.zero_()
    shards.load({"a": tensor}, folder)
    assert bool((shard == torch.ones(1).div_(3)).all())
    return after_save - before, _anonymous_bytes() - anonymous


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _anonymous_bytes() -> int:
    with open("/proc/self/status") as file:
        rows = dict(line.split(":", 1) for line in file)
    return int(rows["RssAnon"].split()[0]) << 10


def saver_session(kind: str, folder: str, num_saves: int) -> dict[str, Any]:
    """Save several times with a saver, change the weights after each; return what was said and published."""
    model, said = make(kind, 1), []
    saver = Saver(folder, dist.get_rank(), dist.get_world_size(), 2, say=said.append)
    for step in range(1, num_saves + 1):
        assert saver.save(step, named(model), {"journal.json": b"[%d]" % step}, {"step": step})
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        assert saver.wait(60)
    dist.barrier()
    return {"said": said, "published": saver.published, "threads": threading.active_count()}


def load_after(kind: str, folder: str, num_changes: int) -> bool:
    model, expected = make(kind, 2), Model(1)
    shards.load(named(model), folder)
    with torch.no_grad():
        for parameter in expected.parameters():
            for _ in range(num_changes):
                parameter.add_(1)
    saved = named(expected)
    return all(torch.equal(whole(one), saved[name]) for name, one in named(model).items())


def save_while_one_rank_writes(folder: str) -> dict[str, Any]:
    """The second save begins while a rank still writes the first."""
    said: list[str] = []
    saver = Saver(folder, dist.get_rank(), dist.get_world_size(), say=said.append)
    gate = threading.Event()
    if dist.get_rank() == 1:
        write = saver._finish
        saver._finish = lambda *arguments: (gate.wait(60), write(*arguments))  # type: ignore[method-assign, return-value]
    begun = [saver.save(1, {"a": torch.ones(3)}, {}, {}), saver.save(2, {"a": torch.ones(3)}, {}, {})]
    gate.set()
    saver.wait(60)
    dist.barrier()
    begun.append(saver.save(3, {"a": torch.ones(3)}, {}, {}))
    saver.wait(60)
    dist.barrier()
    return {"begun": begun, "said": said, "names": sorted(os.listdir(folder))}


def disk_of_one_rank_is_full(folder: str) -> dict[str, Any]:
    """Rank 1 cannot write the second of three checkpoints."""
    said: list[str] = []
    saver = Saver(folder, dist.get_rank(), dist.get_world_size(), say=said.append)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    tensors = {f"a{index}": torch.full((100_000,), float(index)) for index in range(4)}
    for step in (1, 2, 3):
        is_full = step == 2 and dist.get_rank() == 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000 if is_full else limits[0], limits[1]))
        saver.save(step, tensors, {}, {})
        saver.wait(60)
        dist.barrier()
    return {"said": said, "names": sorted(os.listdir(folder))}


def unlike_tensors(folder: str) -> dict[str, Any]:
    """One rank's tensor cannot be saved: all ranks skip, and the next save is tried."""
    said: list[str] = []
    saver = Saver(folder, dist.get_rank(), dist.get_world_size(), say=said.append)
    bad = torch.ones(2).to_sparse() if dist.get_rank() == 1 else torch.ones(2)
    begun = [saver.save(1, {"a": bad}, {}, {}), saver.save(2, {"a": torch.ones(2)}, {}, {})]
    saver.wait(60)
    dist.barrier()
    return {"said": said, "begun": begun, "names": sorted(os.listdir(folder))}
