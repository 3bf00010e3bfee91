"""Plans of torch.distributed.checkpoint as JSON, in which ranks tell each other what they could write."""

import json

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from . import safetensors
from .errors import CheckpointError


def encode(plan: SavePlan) -> bytes:
    """Return a rank's plan; raise CheckpointError for anything but tensors."""
    rows = []
    for item in plan.items:
        data = item.tensor_data
        if data is None:
            raise CheckpointError("%s is no tensor" % item.index.fqn)
        dtype, is_shard = safetensors.dtype_name(data.properties.dtype), item.type == WriteItemType.SHARD
        rows.append(
            [item.index.fqn, dtype, list(data.size), list(data.chunk.offsets), list(data.chunk.sizes), is_shard]
        )
    return json.dumps(rows, separators=(",", ":")).encode()


def decode(content: bytes) -> SavePlan:
    """Return the plan of another rank."""
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
