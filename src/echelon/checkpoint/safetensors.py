"""Read and write the safetensors format. Files are mapped, so that a rank reads only its parts; they are written tensor
by tensor, so that no second copy of the whole is in memory.

A dtype that the format lacks, such as complex128, is stored as bytes (U8, with one more dim). A text of the header
names it, and `read` gives it back.
"""

import ctypes
import json
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from . import header
from .errors import CheckpointError, FormatError

INDEX = "model.safetensors.index.json"
DTYPE_TEXT = "dtype of "
"""How a text of the header begins that gives the dtype of a tensor which is stored as bytes."""
PART_BYTES = 64 << 20  # the most bytes of a tensor of a device that are copied at once
_TORCH_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "C64": "complex64", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
DTYPES: dict[str, torch.dtype] = {
    word: getattr(torch, name) for word, name in _TORCH_NAMES.items() if hasattr(torch, name)
}
WORDS = {dtype: word for word, dtype in DTYPES.items()}


class Spec(NamedTuple):
    """Name, dtype and shape of a tensor that will be written."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without its module.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).partition(".")[2]


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype of a name; raise FormatError if this version of PyTorch has no such dtype."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise FormatError(f"torch {torch.__version__} has no dtype {name}", hint="use a newer version of torch")
    return dtype


class MappedFile:
    """A mapped file: each tensor or slice is read when it is used.

    >>> import tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "a.safetensors")
    >>> write(path, {"a": torch.arange(6).reshape(3, 2)})
    >>> MappedFile(path).slice("a", offsets=(1, 0), lengths=(2, 1))
    tensor([[2],
            [4]])
    """

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as file:
            head = header.read(file, path)
            self._mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))[head.start :]
        self._entries = head.tensors
        self._texts = head.texts

    @property
    def names(self) -> list[str]:
        return list(self._entries)

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor that is mapped; raise FormatError if the file does not have it."""
        if name not in self._entries:
            raise FormatError(f"{self.path} has no tensor {name}")
        entry = self._entries[name]
        part = self._mapped[entry.first : entry.end]
        if entry.first == entry.end:
            stored = torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        else:
            stored = torch.frombuffer(part, dtype=DTYPES[entry.dtype]).reshape(entry.shape)
        text = self._texts.get(DTYPE_TEXT + name)
        tensor = stored if text is None else _from_bytes(stored, dtype_of(text))
        return tensor if tensor.data_ptr() % tensor.element_size() == 0 else _aligned(part, tensor)

    def slice(self, name: str, offsets: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
        """Return a part of a tensor, of `lengths` from `offsets` in each dim; only its bytes are read."""
        part = self.tensor(name)
        for dim, (offset, length) in enumerate(zip(offsets, lengths, strict=False)):
            part = part.narrow(dim, offset, length)
        return part


def read(path: str) -> dict[str, torch.Tensor]:
    """Return the tensors of a file, or of a folder whose index says in which files they are; raise FormatError."""
    if not os.path.isdir(path):
        return _read_file(path)
    index = os.path.join(path, INDEX)
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
    else:
        names = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
    if not names:
        raise FormatError(f"{path} has neither {INDEX} nor a *.safetensors file", hint="name a file of weights")
    tensors: dict[str, torch.Tensor] = {}
    for name in names:
        tensors.update(_read_file(os.path.join(path, name)))
    return tensors


def _read_file(path: str) -> dict[str, torch.Tensor]:
    reader = MappedFile(path)
    return {name: reader.tensor(name) for name in reader.names}


def write(path: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors into a file, and replace an existing file as a whole; those with larger numbers come first."""
    ordered = sorted(tensors.items(), key=lambda pair: -pair[1].element_size())
    specs = [Spec(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in ordered]
    with open(path + ".part", "wb") as file:
        write_stream(file, specs, (tensor for _, tensor in ordered))
    os.replace(path + ".part", path)


def write_stream(file: Any, specs: Sequence[Spec], tensors: Iterable[torch.Tensor]) -> None:
    """Write the header of `specs` into an open file, then the tensors, which may be made one by one.

    `file` has a method `write(buffer)`. A tensor of a device is copied in parts of 64 MiB.
    """
    write_header(file, specs)
    for tensor in tensors:
        for part in raw_parts(tensor):
            file.write(part)


def write_header(file: Any, specs: Sequence[Spec]) -> None:
    """Write the header of tensors into an open file; their bytes must follow in the same order."""
    rows = [(one.name, *_stored_as(one.dtype, one.shape)) for one in specs]
    texts = {DTYPE_TEXT + one.name: dtype_name(one.dtype) for one in specs if one.dtype not in WORDS}
    file.write(header.encode(rows, texts))


def raw_parts(tensor: torch.Tensor) -> Iterator[Any]:
    """Yield the bytes of a tensor in row-major order, as buffers that are valid until the next one."""
    if tensor.numel() == 0:
        return
    flat = plain(tensor).contiguous().reshape(-1)
    if str(flat.device) == "cpu":
        yield _buffer(flat)
        return
    num_items = max(1, PART_BYTES // flat.element_size())
    for first in range(0, flat.numel(), num_items):
        yield _buffer(flat[first : first + num_items].cpu())


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose memory holds its values: without gradient, and neither conjugated nor negated lazily."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise CheckpointError(f"a tensor of layout {tensor.layout} and dtype {tensor.dtype} cannot be saved")
    return tensor.detach().resolve_conj().resolve_neg()


def _buffer(flat: torch.Tensor) -> Any:
    length = flat.numel() * flat.element_size()
    buffer: Any = (ctypes.c_char * length).from_address(flat.data_ptr())
    buffer._tensor = flat  # keeps the memory
    return buffer


def _stored_as(dtype: torch.dtype, shape: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    if dtype in WORDS:
        return WORDS[dtype], tuple(shape)
    return "U8", (*shape, torch.empty(0, dtype=dtype).element_size())


def _aligned(part: memoryview, tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor that another program has written at an address that its dtype does not allow."""
    return torch.frombuffer(bytearray(part), dtype=tensor.dtype).reshape(tensor.shape)


def _from_bytes(stored: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    shape = stored.shape[:-1]
    if stored.numel() == 0:
        return torch.empty(shape, dtype=dtype)
    return stored.reshape(-1).view(dtype).reshape(shape)
