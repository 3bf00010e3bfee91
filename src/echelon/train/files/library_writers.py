"""The functions of libraries that write a file by its path."""

import os

from ...pytorch import modules as torch_modules
from ..scaling_error import as_of_library

FUNCTIONS = (
    ("torch", "save", 1, "f"),
    ("torch.jit", "save", 1, "f"),
    ("torch.jit", "ScriptModule.save", 1, "f"),
    (torch_modules.SCRIPTED_MODULES, "RecursiveScriptModule.save", 1, "f"),
    ("numpy", "save", 0, "file"),
    ("numpy", "savez", 0, "file"),
    ("numpy", "savez_compressed", 0, "file"),
    ("safetensors.torch", "save_file", 1, "filename"),
    ("safetensors.torch", "save_model", 1, "filename"),
    ("safetensors.numpy", "save_file", 1, "filename"),
    ("cv2", "imwrite", 0, "filename"),
    ("torchvision.io", "write_file", 0, "filename"),
    ("torchvision.io", "write_jpeg", 1, "filename"),
    ("torchvision.io", "write_png", 1, "filename"),
    ("torchaudio", "save", 0, "uri"),
    ("soundfile", "write", 0, "file"),
    ("onnx", "save", 1, "f"),
    ("pyarrow.parquet", "write_table", 1, "where"),
)
"""Module, function, place and name of the argument with the file."""

FULL_BYTES = 1 << 20
"""A disk with less room than this is full."""


def refuse_full_disk(path: str, error: RuntimeError) -> None:
    """Name a full disk, which torch.save() calls an iostream error."""
    status = os.statvfs(os.path.dirname(os.path.realpath(path)))
    if status.f_bavail * status.f_frsize < FULL_BYTES:
        raise as_of_library(RuntimeError("No space left on device: %s (%s)" % (path, error))) from None
