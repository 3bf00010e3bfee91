"""Read and write the safetensors format: eight bytes of length, a JSON header, and the numbers. Files are mapped, so
that a rank reads only its parts."""

import ctypes
import json
import mmap
import os
import struct
from typing import Any, Dict, Mapping

import torch

from .strategy import StrategyError

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
WORDS = {dtype: word for word, dtype in DTYPES.items()}
INDEX = "model.safetensors.index.json"


def read(path: str) -> Dict[str, torch.Tensor]:
    """Return the tensors of a file, or of a folder whose index says in which files they are."""
    if not os.path.isdir(path):
        return _read_file(path)
    index = os.path.join(path, INDEX)
    if os.path.exists(index):
        with open(index, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
    else:
        names = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
    if not names:
        raise StrategyError("%s has neither %s nor a *.safetensors file" % (path, INDEX), hint="name a file of weights")
    tensors: Dict[str, torch.Tensor] = {}
    for name in names:
        tensors.update(_read_file(os.path.join(path, name)))
    return tensors


def _read_file(path: str) -> Dict[str, torch.Tensor]:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = struct.unpack("<Q", file.read(8))[0] if size >= 8 else size
        if length + 8 > size:
            raise StrategyError("%s is not a safetensors file, or is truncated" % path, hint="write it again")
        header: Dict[str, Any] = json.loads(file.read(length))
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))[8 + length :]
    return {name: _tensor(entry, mapped) for name, entry in header.items() if name != "__metadata__"}


def _tensor(entry: Dict[str, Any], mapped: memoryview) -> torch.Tensor:
    first, end = entry["data_offsets"]
    dtype = DTYPES[entry["dtype"]]
    if first == end:
        return torch.empty(entry["shape"], dtype=dtype)
    return torch.frombuffer(mapped[first:end], dtype=dtype).reshape(entry["shape"])


def write(path: str, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors into a file, and replace an existing file as a whole."""
    header: Dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": WORDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            plain = tensor.detach().cpu().contiguous()
            file.write((ctypes.c_char * (plain.numel() * plain.element_size())).from_address(plain.data_ptr()))
    os.replace(path + ".part", path)
