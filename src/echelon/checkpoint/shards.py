"""Each rank writes and reads its own shards. torch.distributed.checkpoint plans, leaves out duplicates and reshards.
The files are safetensors and JSON. What ranks tell each other is JSON too; torch.distributed.checkpoint would pickle.

Each rank writes rank-K.safetensors; tensors.json says which file has which chunk of which tensor.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from . import exchange, safetensors, tensors_file
from .errors import CheckpointError, FormatError, MismatchError, writing
from .safetensors import Spec
from .tensors_file import Chunk, SavedTensor
from .written import HashedFile, write_file

NUM_NAMED = 5  # the most tensors that an error names


class RankShare(NamedTuple):
    """What this rank writes: a file of tensors that are still those of the training."""

    file: str
    specs: list[Spec]
    tensors: list[torch.Tensor]
    document: bytes
    """The content of tensors.json, equal on all ranks; rank 0 writes it."""
    num_bytes: list[int]
    """The bytes of each rank's tensors."""


class ShardWriter(StorageWriter):
    """torch.distributed.checkpoint writes through it into a folder: rank-K.safetensors and tensors.json."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def reset(self, checkpoint_id: Any = None) -> None:
        self.folder = self.folder if checkpoint_id is None else os.fspath(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: object, **kwargs: object) -> None:  # noqa: ARG002
        with writing(self.folder):
            os.makedirs(self.folder, exist_ok=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Leave out empty shards of tensors that are not empty."""
        return dataclasses.replace(plan, items=[item for item in plan.items if not _is_empty_shard(item)])

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tell each rank its number; larger numbers come first in a file, so that all are aligned."""
        return [
            dataclasses.replace(plan, items=sorted(plan.items, key=_order), storage_data=rank)
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[list[WriteResult]]":
        results = results_of(plan)
        with HashedFile(os.path.join(self.folder, file_of(plan))) as file:
            safetensors.write_stream(file, specs_of(plan), (planner.resolve_data(item) for item in plan.items))  # type: ignore[misc]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write tensors.json; the coordinator calls it."""
        write_file(os.path.join(self.folder, tensors_file.NAME), tensors_file.encode(saved_tensors(metadata, results)))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        return isinstance(checkpoint_id, (str, os.PathLike))


class ShardReader(StorageReader):
    """torch.distributed.checkpoint reads through it from a folder; each rank reads only the bytes that it needs."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.saved: dict[str, SavedTensor] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        self.folder = self.folder if checkpoint_id is None else os.fspath(checkpoint_id)

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:  # noqa: ARG002
        """Return the tensors of the checkpoint; raise FormatError if it has none."""
        self.saved = tensors_file.read(self.folder)
        entries: dict[str, Any] = {}
        for name, one in self.saved.items():
            chunks = [ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.shape)) for part in one.chunks]
            properties = TensorProperties(dtype=safetensors.dtype_of(one.dtype))
            entries[name] = TensorStorageMetadata(properties, torch.Size(one.shape), chunks)
        return Metadata(entries)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: object, **kwargs: object) -> None:
        """Nothing is to be prepared."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        pieces: dict[str, list[tuple[str, Any]]] = {}
        for item in plan.items:
            chunk = self._chunk(item.storage_index)
            pieces.setdefault(chunk.file, []).append((chunk.key, item))
        for file, items in pieces.items():
            reader = safetensors.MappedFile(os.path.join(self.folder, file))
            for key, item in items:
                target = planner.resolve_tensor(item).detach()
                _copy(target, reader.slice(key, item.storage_offsets, item.lengths))
                planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        return isinstance(checkpoint_id, (str, os.PathLike))

    def _chunk(self, index: MetadataIndex) -> Chunk:
        chunks = self.saved[index.fqn].chunks
        offsets = tuple(index.offset or ())
        if index.index is not None and index.index < len(chunks) and chunks[index.index].offsets == offsets:
            return chunks[index.index]
        return next(chunk for chunk in chunks if chunk.offsets == offsets)


class Plans:
    """Plans of saves; a plan that no rank has changed since the last save is used again."""

    def __init__(self, process_group: Any = None) -> None:
        self._group = process_group
        self._planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._writer = ShardWriter("")
        self._kinds: list[tuple[Any, ...]] = []
        self._local = b""
        self._digests: list[bytes] = []
        self._plans: list[SavePlan] = []
        self._document = b""

    def prepare(self, tensors: Mapping[str, torch.Tensor]) -> str:
        """Plan what this rank could write, without the other ranks; return a text that changes with the plan.

        Raises CheckpointError for a tensor that cannot be saved.
        """
        check_tensors(tensors)
        self._planner.set_up_planner(dict(tensors), None, exchange.rank(self._group) == 0)
        kinds = _kinds(tensors)
        if not kinds or kinds != self._kinds:
            plan = self._writer.prepare_local_plan(self._planner.create_local_plan())
            self._local, self._kinds = exchange.encode(plan), kinds
        return hashlib.blake2b(self._local, digest_size=16).hexdigest()

    def share(self, digests: Sequence[str]) -> RankShare:
        """Return this rank's share, from the texts that `prepare` gave on all ranks; every rank must call it.

        Raises CheckpointError, on all ranks, if the shards of the ranks do not fit together.
        """
        wanted = [digest.encode() for digest in digests]
        if wanted != self._digests:
            self._plan_all(exchange.gather(self._local, self._group))
            self._digests = wanted
        plan = self._plans[exchange.rank(self._group)]
        self._planner.finish_plan(plan)
        tensors = [self._planner.resolve_data(item) for item in plan.items]
        self._planner.state_dict = {}  # the tensors of the training may be replaced and freed
        num_bytes = [sum(item.tensor_storage_size() or 0 for item in one.items) for one in self._plans]
        return RankShare(file_of(plan), specs_of(plan), tensors, self._document, num_bytes)  # type: ignore[arg-type]

    def _plan_all(self, encoded: list[bytes]) -> None:
        self._digests = []
        try:
            plans, metadata = self._planner.create_global_plan([exchange.decode(one) for one in encoded])
        except ValueError as error:
            raise CheckpointError(f"the shards of the ranks do not fit together: {error}") from None
        self._plans = self._writer.prepare_global_plan(plans)
        results = [results_of(plan) for plan in self._plans]
        self._document = tensors_file.encode(saved_tensors(metadata, results))


def _kinds(tensors: Mapping[str, torch.Tensor]) -> list[tuple[Any, ...]]:
    """Return all that a plan depends on; nothing where tensors have shards, which may change without it."""
    if any(isinstance(tensor, DTensor) for tensor in tensors.values()):
        return []
    return [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()]


def save(tensors: Mapping[str, torch.Tensor], folder: str, process_group: Any | None = None) -> None:
    """Write tensors into a folder; every rank of the group must call it, with the same names.

    A tensor that all ranks have is written once; of a DTensor each rank writes its shard. Raises CheckpointError on
    all ranks if one of them cannot write. The folder is no published checkpoint: see `store` and `saver`.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> save({"model-0/bias": torch.ones(2)}, folder)
    >>> bias = torch.zeros(2)
    >>> load({"model-0/bias": bias}, folder)
    []
    >>> bias
    tensor([1., 1.])
    """
    plans = Plans(process_group)
    mistake, digest = "", ""
    try:
        digest = plans.prepare(tensors)
    except CheckpointError as error:
        mistake = error.message
    told = _agree({"digest": digest}, mistake, process_group)
    share = plans.share([one["digest"] for one in told])
    try:
        with writing(folder):
            os.makedirs(folder, exist_ok=True)
        with HashedFile(os.path.join(folder, share.file)) as file:
            safetensors.write_stream(file, share.specs, share.tensors)
        if exchange.rank(process_group) == 0:
            write_file(os.path.join(folder, tensors_file.NAME), share.document)
    except CheckpointError as error:
        mistake = error.message
    _agree({}, mistake, process_group)


def load(tensors: Mapping[str, torch.Tensor], folder: str, process_group: Any | None = None) -> list[str]:
    """Read tensors in place from a folder; every rank of the group must call it. Return the names that are left over.

    Any number of ranks and any sharding may have written them. Raises MismatchError, on all ranks, for tensors that
    the checkpoint lacks, or has with another shape or dtype; raises FormatError for damaged files.
    """
    mistake: CheckpointError | None = None
    left: list[str] = []
    try:
        left = _load_alone(tensors, folder)
    except CheckpointError as error:
        mistake = error
    except OSError as error:
        mistake = FormatError(f"{error.filename or folder} cannot be read: {error.strerror}")
    try:
        _agree({}, "" if mistake is None else mistake.message, process_group)
    except CheckpointError:
        if mistake is not None:
            raise mistake from None
        raise
    return left


def _load_alone(tensors: Mapping[str, torch.Tensor], folder: str) -> list[str]:
    check_tensors(tensors)
    reader, planner = ShardReader(folder), DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    metadata = reader.read_metadata()
    check_match(tensors, reader.saved, folder)
    planner.set_up_planner(dict(tensors), metadata, is_coordinator=False)
    reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()
    return [name for name in reader.saved if name not in tensors]


def check_tensors(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise CheckpointError for values that are no tensors, or whose numbers cannot be saved."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor):
            raise CheckpointError(f"{name} is a {type(tensor).__name__}; only tensors can be saved")
        if tensor.is_meta:
            raise CheckpointError(f"{name} is on the meta device, and so has no numbers")
        if isinstance(tensor, DTensor):
            if any(placement.is_partial() for placement in tensor.placements):
                raise CheckpointError(f"{name} is a DTensor whose ranks hold partial sums; call full_tensor() first")
        elif tensor.layout != torch.strided or tensor.is_quantized:
            raise CheckpointError(f"{name} has the layout {tensor.layout} and the dtype {tensor.dtype}")


def check_match(tensors: Mapping[str, torch.Tensor], saved: Mapping[str, SavedTensor], folder: str) -> None:
    """Raise MismatchError if a checkpoint lacks tensors, or has them with another shape or dtype."""
    lines = []
    for name, tensor in tensors.items():
        ours = f"{safetensors.dtype_name(tensor.dtype)} {list(tensor.shape)}"
        if name not in saved:
            lines.append(f"{name}: the checkpoint lacks it; the training has {ours}")
            continue
        theirs = f"{saved[name].dtype} {list(saved[name].shape)}"
        if theirs != ours:
            lines.append(f"{name}: the checkpoint has {theirs}, and the training has {ours}")
    if lines:
        more = f"\n  and {len(lines) - NUM_NAMED} more" if len(lines) > NUM_NAMED else ""
        listed = "".join(f"\n  {line}" for line in lines[:NUM_NAMED])
        raise MismatchError(
            f"{len(lines)} of {len(tensors)} tensors do not fit the checkpoint {folder}:{listed}{more}",
            hint="use the model and the optimizer that were saved, or begin anew in another folder",
        )


def file_of(plan: SavePlan) -> str:
    return f"rank-{plan.storage_data or 0:d}.safetensors"


def specs_of(plan: SavePlan) -> list[Spec]:
    return [
        Spec(key, item.tensor_data.properties.dtype, tuple(item.tensor_data.chunk.sizes))  # type: ignore[union-attr]
        for key, item in zip(_keys(plan), plan.items, strict=False)
    ]


def results_of(plan: SavePlan) -> list[WriteResult]:
    """Return where each chunk of a rank is once it is written."""
    return [
        WriteResult(item.index, item.tensor_storage_size() or 0, (file_of(plan), key))
        for key, item in zip(_keys(plan), plan.items, strict=False)
    ]


def saved_tensors(metadata: Metadata, results: Sequence[Sequence[WriteResult]]) -> dict[str, SavedTensor]:
    """Return the content of tensors.json from the plan of all ranks and the places of their chunks."""
    places = {(one.index.fqn, tuple(one.index.offset or ())): one.storage_data for rank in results for one in rank}
    saved = {}
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise CheckpointError(f"{name} is no tensor")
        chunks = []
        for chunk in entry.chunks:
            file, key = places[name, tuple(chunk.offsets)]
            chunks.append(Chunk(tuple(chunk.offsets), tuple(chunk.sizes), file, key))
        dtype = safetensors.dtype_name(entry.properties.dtype)
        saved[name] = SavedTensor(dtype, tuple(entry.size), chunks)
    return saved


def _keys(plan: SavePlan) -> list[str]:
    """Return the key of each chunk in its file: the tensor's name, and its offsets if it is not whole."""
    keys: list[str] = []
    for item in plan.items:
        data, name = item.tensor_data, item.index.fqn
        is_whole = data is None or data.chunk.sizes == data.size
        key = name if is_whole else "{}@{}".format(name, ",".join(map(str, data.chunk.offsets)))  # type: ignore[union-attr]
        keys.append(key)
    if len(set(keys)) == len(keys):
        return keys
    return [f"{key}#{place}" for place, key in enumerate(keys)]


def _order(item: WriteItem) -> int:
    return 0 if item.tensor_data is None else -torch.empty(0, dtype=item.tensor_data.properties.dtype).element_size()


def _is_empty_shard(item: WriteItem) -> bool:
    data = item.tensor_data
    return data is not None and 0 in data.chunk.sizes and 0 not in data.size


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy numbers; not all dtypes of one byte have a copy of their own."""
    if source.element_size() == 1:
        target, source = target.view(torch.uint8), source.view(torch.uint8)
    target.copy_(source)


def _agree(fields: dict[str, Any], mistake: str, group: object) -> list[dict[str, Any]]:
    """Return the fields of all ranks; raise CheckpointError on all ranks if one of them has made a mistake."""
    told = [json.loads(one) for one in exchange.gather(json.dumps({**fields, "mistake": mistake}).encode(), group)]
    mistakes = [(rank, one["mistake"]) for rank, one in enumerate(told) if one["mistake"]]
    if mistakes:
        rank, text = mistakes[0]
        raise CheckpointError(text if len(told) == 1 else f"rank {rank}: {text}")
    return told
