"""The header of the safetensors format: eight bytes of length, JSON, then the numbers. This module needs no torch."""

import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from .errors import FormatError

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
"""The format's words for dtypes, and the bytes of one number."""
ALIGNMENT = 64
"""The numbers begin at a multiple of it: copies of 16 bytes at an address that is no multiple of 16 may crash."""
METADATA = "__metadata__"
MOST_BYTES = 512 << 20


class TensorHeader(NamedTuple):
    """Where a tensor is in a file: its dtype in the format's word, its shape, and its bytes after the header."""

    dtype: str
    shape: tuple[int, ...]
    first: int
    end: int


class TensorsHeader(NamedTuple):
    """The tensors of a file, the offset of their numbers, and the texts that the writer added."""

    tensors: Mapping[str, TensorHeader]
    start: int
    texts: Mapping[str, str]


def encode(tensors: Iterable[tuple[str, str, Sequence[int]]], texts: Mapping[str, str]) -> bytes:
    """Return the beginning of a file from names, dtypes and shapes, in the order in which the numbers follow.

    >>> encode([("a", "F32", (2, 3))], {})[8:].rstrip()
    b'{"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}'
    """
    fields: dict[str, Any] = {METADATA: dict(texts)} if texts else {}
    first = 0
    for name, dtype, shape in tensors:
        end = first + num_bytes(dtype, shape)
        fields[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [first, end]}
        first = end
    text = json.dumps(fields).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def num_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor of a dtype in the format's word.

    >>> num_bytes("BF16", (2, 3))
    12
    """
    count = ITEM_BYTES[dtype]
    for size in shape:
        count *= size
    return count


def read(file: BinaryIO, path: str) -> TensorsHeader:
    """Return the header of an open file; raise FormatError if it is another kind of file, or truncated."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
    if length + 8 > size or length > MOST_BYTES:
        raise FormatError(f"{path} is not a safetensors file, or is truncated", hint="write it again")
    try:
        fields = json.loads(file.read(length))
        texts = fields.pop(METADATA, {})
        tensors = {name: _tensor(fields[name], path, name) for name in fields}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError(f"{path} is not a safetensors file: its header is damaged", hint="write it again") from None
    missing = max((one.end for one in tensors.values()), default=0) - (size - 8 - length)
    if missing > 0:
        raise FormatError(f"{path} is truncated: {missing} bytes are missing", hint="write it again")
    return TensorsHeader(tensors, 8 + length, texts)


def _tensor(field: Mapping[str, Any], path: str, name: str) -> TensorHeader:
    first, end = field["data_offsets"]
    shape: list[int] = field["shape"]
    if field["dtype"] not in ITEM_BYTES:
        raise FormatError("{}: {} has the dtype {}, which echelon cannot read".format(path, name, field["dtype"]))
    if first < 0 or min(shape, default=0) < 0 or end - first != num_bytes(field["dtype"], shape):
        raise FormatError(f"{path} is not a safetensors file: the header of {name} is damaged")
    return TensorHeader(field["dtype"], tuple(shape), first, end)
