"""Put the chunks of a model together into one safetensors file, without torch and without the model in memory."""

import itertools
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from . import header, tensors_file
from .errors import CheckpointError, FormatError, writing
from .header import TensorHeader
from .tensors_file import Chunk, SavedTensor

MODEL = "model"  # how the names of models begin; other names are those of optimizers and the like
DTYPE_TEXT = "dtype of "


class Exported(NamedTuple):
    """A file that was written: its path, and how many tensors it has."""

    path: str
    num_tensors: int


class _SafetensorsFile(NamedTuple):
    head: header.TensorsHeader
    content: memoryview


def export(folder: str, out: str) -> list[Exported]:
    """Write NAME.safetensors into the folder `out` for each model of a checkpoint; return the files.

    The tensor model-0/layer.weight becomes layer.weight of model-0.safetensors. Raises CheckpointError if there is no
    model or `out` has such a file already, FormatError for damaged files, and WriteError if `out` cannot be written.
    """
    models = models_of(tensors_file.read(folder))
    if not models:
        raise CheckpointError(f"{folder} has no model: no tensor's name begins with {MODEL}")
    paths = {model: os.path.join(out, model + ".safetensors") for model in models}
    for path in paths.values():
        if os.path.lexists(path):
            raise CheckpointError(f"{path} already exists", hint="--out another-folder")
    files: dict[str, _SafetensorsFile] = {}
    exported = []
    for model, tensors in models.items():
        path = paths[model]
        with writing(out):
            os.makedirs(out, exist_ok=True)
            _write_model(path, folder, tensors, files)
        exported.append(Exported(path, len(tensors)))
    return exported


def models_of(tensors: Mapping[str, SavedTensor]) -> dict[str, dict[str, SavedTensor]]:
    """Return the tensors of each model by their names inside of the model.

    >>> tensors = {"model-0/bias": SavedTensor("float32", (), []), "optimizer-0/step": SavedTensor("int64", (), [])}
    >>> {model: list(names) for model, names in models_of(tensors).items()}
    {'model-0': ['bias']}
    """
    models: dict[str, dict[str, SavedTensor]] = {}
    for name, tensor in tensors.items():
        model, slash, inner = name.partition("/")
        if slash and model.startswith(MODEL):
            models.setdefault(model, {})[inner] = tensor
    return models


def _write_model(
    path: str, folder: str, tensors: Mapping[str, SavedTensor], files: dict[str, _SafetensorsFile]
) -> None:
    """Write beside, let it reach the disk, and rename."""
    for tensor in tensors.values():
        for chunk in tensor.chunks:
            if chunk.file not in files:
                files[chunk.file] = _opened(os.path.join(folder, chunk.file))
    stored = {name: _stored(tensor, files) for name, tensor in tensors.items()}
    texts = {DTYPE_TEXT + name: one.dtype for name, one in tensors.items() if len(stored[name][1]) > len(one.shape)}
    start = header.encode([(name, *stored[name]) for name in tensors], texts)
    beside = f"{path}.{os.getpid()}.part"
    try:
        with open(beside, "xb") as file:
            file.write(start)
            for name, tensor in tensors.items():
                file.write(_assembled(tensor, stored[name], files))
            file.flush()
            os.fsync(file.fileno())
        os.rename(beside, path)
    except BaseException:
        if os.path.exists(beside):
            os.unlink(beside)
        raise


def _opened(path: str) -> _SafetensorsFile:
    try:
        with open(path, "rb") as file:
            head = header.read(file, path)
            return _SafetensorsFile(
                head, memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[head.start :]
            )
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}") from None


def _entry(chunk: Chunk, files: Mapping[str, _SafetensorsFile]) -> TensorHeader:
    entry = files[chunk.file].head.tensors.get(chunk.key)
    if entry is None or entry.shape[: len(chunk.shape)] != chunk.shape:
        raise FormatError(f"{chunk.file} has no chunk {chunk.key} of the shape {list(chunk.shape)}")
    return entry


def _stored(tensor: SavedTensor, files: Mapping[str, _SafetensorsFile]) -> tuple[str, tuple[int, ...]]:
    """Return the format's dtype and shape of a whole tensor; a dtype that the format lacks has one more dim."""
    if not tensor.chunks:
        raise FormatError(f"{tensors_file.NAME} names a tensor without chunks")
    entry = _entry(tensor.chunks[0], files)
    return entry.dtype, (*tensor.shape, *entry.shape[len(tensor.shape) :])


def _assembled(
    tensor: SavedTensor, stored: tuple[str, tuple[int, ...]], files: Mapping[str, _SafetensorsFile]
) -> bytearray | memoryview:
    """Return the bytes of a whole tensor; one chunk is returned as it is mapped."""
    dtype, shape = stored
    if len(tensor.chunks) == 1 and tensor.chunks[0].shape == tensor.shape:
        entry = _entry(tensor.chunks[0], files)
        return files[tensor.chunks[0].file].content[entry.first : entry.end]
    whole = bytearray(header.num_bytes(dtype, shape))
    num_copied = 0
    for chunk in tensor.chunks:
        entry = _entry(chunk, files)
        content = files[chunk.file].content[entry.first : entry.end]
        item_bytes = header.num_bytes(dtype, shape[len(tensor.shape) :])
        position = 0
        for start, length in runs(tensor.shape, chunk.offsets, chunk.shape):
            first, size = start * item_bytes, length * item_bytes
            whole[first : first + size] = content[position : position + size]
            position += size
        num_copied += position
    if num_copied != len(whole):
        raise FormatError(f"the chunks of a tensor have {num_copied} of its {len(whole)} bytes")
    return whole


def runs(whole: Sequence[int], offsets: Sequence[int], shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield where the numbers of a chunk are in the whole tensor, as starts and lengths of runs, in the chunk's order.

    >>> list(runs((3, 4), (1, 2), (2, 2)))
    [(6, 2), (10, 2)]
    >>> list(runs((3, 4), (1, 0), (2, 4)))
    [(4, 8)]
    """
    if 0 in shape:
        return
    strides = [1]
    for size in reversed(whole[1:]):
        strides.insert(0, strides[0] * size)
    dim = len(shape)  # the dims from this one on are whole, and so lie in one run
    while dim > 0 and shape[dim - 1] == whole[dim - 1]:
        dim -= 1
    outer = max(0, dim - 1)
    length = 1
    for size in shape[outer:]:
        length *= size
    inner_start = sum(offset * stride for offset, stride in zip(offsets[outer:], strides[outer:], strict=False))
    ranges = (range(offset, offset + size) for offset, size in zip(offsets[:outer], shape, strict=False))
    for index in itertools.product(*ranges):
        yield inner_start + sum(one * stride for one, stride in zip(index, strides, strict=False)), length
