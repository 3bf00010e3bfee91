"""Exchange bytes and plans of shards between the ranks of a group; nothing is pickled."""

import json
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from . import safetensors
from .errors import CheckpointError

_LENGTH_BYTES = 8


def size(group: Any = None) -> int:
    """Return the number of ranks of a group, 1 without torch.distributed."""
    return dist.get_world_size(group) if is_distributed() else 1


def rank(group: Any = None) -> int:
    """Return the rank of this process in a group, 0 without torch.distributed."""
    return dist.get_rank(group) if is_distributed() else 0


def is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def gather(content: bytes, group: object = None) -> list[bytes]:
    """Return the bytes of all ranks of a group, in their order; every rank must call it.

    >>> gather(b"alone")
    [b'alone']
    """
    num_ranks = size(group)
    if num_ranks == 1:
        return [content]
    device = _device(group)
    lengths = [int.from_bytes(one, "little") for one in _gathered(_length(content), group, device, num_ranks)]
    longest = max(lengths)
    if longest == 0:
        return [b""] * num_ranks
    padded = _gathered(content.ljust(longest, b"\0"), group, device, num_ranks)
    return [one[:length] for one, length in zip(padded, lengths, strict=False)]


def _length(content: bytes) -> bytes:
    return len(content).to_bytes(_LENGTH_BYTES, "little")


def _gathered(content: bytes, group: object, device: torch.device, num_ranks: int) -> list[bytes]:
    mine = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)
    all_of_them = [torch.empty_like(mine) for _ in range(num_ranks)]
    dist.all_gather(all_of_them, mine, group=group)
    return [bytes(one.cpu().tolist()) for one in all_of_them]


def _device(group: Any) -> torch.device:
    """Return the device of a group's messages: the CPU if the group has a backend for it."""
    config = str(dist.get_backend_config(group))
    return torch.device("cpu" if "cpu:" in config else config.partition(":")[0])


def encode(plan: SavePlan) -> bytes:
    """Return a rank's plan; raise CheckpointError for anything but tensors."""
    rows = []
    for item in plan.items:
        data = item.tensor_data
        if data is None:
            raise CheckpointError(f"{item.index.fqn} is no tensor")
        dtype, is_shard = safetensors.dtype_name(data.properties.dtype), item.type == WriteItemType.SHARD
        rows.append(
            [item.index.fqn, dtype, list(data.size), list(data.chunk.offsets), list(data.chunk.sizes), is_shard]
        )
    return json.dumps(rows, separators=(",", ":")).encode()


def decode(content: bytes) -> SavePlan:
    items = []
    for name, dtype, size, offsets, sizes, is_shard in json.loads(content):
        data = TensorWriteData(
            chunk=ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes)),
            properties=TensorProperties(dtype=safetensors.dtype_of(dtype)),
            size=torch.Size(size),
        )
        kind = WriteItemType.SHARD if is_shard else WriteItemType.TENSOR
        items.append(WriteItem(index=MetadataIndex(name, offsets), type=kind, tensor_data=data))
    return SavePlan(items)
