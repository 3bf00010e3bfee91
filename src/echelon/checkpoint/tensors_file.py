"""tensors.json of a checkpoint: dtype and shape of each tensor, and the files of its chunks. It needs no torch."""

import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from .errors import FormatError

NAME = "tensors.json"
FORMAT = 1


class Chunk(NamedTuple):
    """A part of a tensor: where it begins in each dim, its shape, and the file and the key that hold it."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    key: str


class SavedTensor(NamedTuple):
    """A tensor of a checkpoint: its dtype in PyTorch's word, its whole shape, and its chunks."""

    dtype: str
    shape: tuple[int, ...]
    chunks: list[Chunk]


def encode(tensors: Mapping[str, SavedTensor]) -> bytes:
    """Return the file's content.

    >>> chunk = Chunk((0,), (3,), "rank-0.safetensors", "model-0/bias")
    >>> decode(encode({"model-0/bias": SavedTensor("float32", (3,), [chunk])}))["model-0/bias"].shape
    (3,)
    """
    fields = {
        name: {"dtype": one.dtype, "shape": list(one.shape), "chunks": [_chunk_fields(chunk) for chunk in one.chunks]}
        for name, one in tensors.items()
    }
    return json.dumps({"format": FORMAT, "tensors": fields}).encode()


def decode(content: bytes) -> dict[str, SavedTensor]:
    """Return the tensors from the file's content; raise FormatError for any other content."""
    try:
        fields = json.loads(content)
        if fields["format"] > FORMAT:
            raise FormatError(f"{NAME} has format {fields['format']}; this version of echelon reads {FORMAT}")
        return {name: _tensor(one) for name, one in fields["tensors"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError(f"{NAME} is damaged") from None


def read(folder: str) -> dict[str, SavedTensor]:
    """Return the tensors of a checkpoint's folder; raise FormatError if it has none that can be read."""
    path = os.path.join(folder, NAME)
    try:
        with open(path, "rb") as file:
            return decode(file.read())
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}") from None


def _chunk_fields(chunk: Chunk) -> dict[str, Any]:
    return {"offsets": list(chunk.offsets), "shape": list(chunk.shape), "file": chunk.file, "key": chunk.key}


def _tensor(fields: Mapping[str, Any]) -> SavedTensor:
    chunks = [
        Chunk(_sizes(one["offsets"]), _sizes(one["shape"]), _plain_name(one["file"]), str(one["key"]))
        for one in fields["chunks"]
    ]
    return SavedTensor(str(fields["dtype"]), _sizes(fields["shape"]), chunks)


def _sizes(values: list[Any]) -> tuple[int, ...]:
    if not all(isinstance(value, int) and value >= 0 for value in values):
        raise ValueError(values)
    return tuple(values)


def _plain_name(name: str) -> str:
    if os.path.basename(name) != name:
        raise ValueError(name)
    return name
