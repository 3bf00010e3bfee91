"""Let one rank call the functions of libraries that write a file by its path."""

import builtins
import io
import os
import sys
from functools import partial
from typing import Any

from ...pytorch import modules as torch_modules
from .. import patches, scaling_error
from ..function_types import Function
from ..global_tensors.tensors import GlobalTensor, plain, tensors_of
from ..patches import Hooks
from ..scaling_error import as_of_library
from . import whole
from .folders import changing
from .sharing import Files


def install(files: Files, hooks: Hooks) -> None:
    def wrap(name: str, place: int, key: str, original: Function) -> Function:
        appear = whole.writing(place, key, refuse_full_disk, original)
        return with_plain(changing(files, name, place, key, appear))

    for module, function, place, key in FUNCTIONS:
        write = partial(wrap, f"{module}.{function}", place, key)
        hooks.replace(module, function, write, why="A library writes a file on rank 0 alone.")


def with_plain(wrapped: Function) -> Function:
    """Let all ranks join the parts of shared tensors before one rank calls the function."""

    def call(*args: object, **kwargs: object) -> Any:
        if any(isinstance(one, GlobalTensor) for one in tensors_of(args, kwargs)):
            args, kwargs = plain(args), plain(kwargs)
        return wrapped(*args, **kwargs)

    return call


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
        raise as_of_library(RuntimeError(f"No space left on device: {path} ({error})")) from None


_open = builtins.open
_WHY_ON_ONE_RANK = "A file appears when it is whole, so a killed process leaves no torn file."


def install_on_one_rank() -> None:
    """Hook open() and the functions of libraries that write a file, now or when they are imported."""
    hooks = patches.Hooks()
    hooks.put(builtins, "open", _open, _opened, why=_WHY_ON_ONE_RANK)
    patches.replace(io, "open", _opened, why=_WHY_ON_ONE_RANK)  # pathlib uses it
    for module, function, place, key in FUNCTIONS:
        hooks.replace(module, function, partial(whole.writing, place, key, refuse_full_disk), why=_WHY_ON_ONE_RANK)
    hooks.apply()
    original = sys.excepthook

    def excepthook(kind: type, error: BaseException, trace: Any) -> None:
        if not os.environ.get("ECHELON_TRACEBACK"):
            scaling_error.leave_out_own_frames(scaling_error.as_of_library(error))
        original(kind, error, error.__traceback__ or trace)

    why = "The traceback of a script's own error has no frames of echelon."
    patches.replace(sys, "excepthook", excepthook, why=why)


def _opened(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
    opener: Any = None,
) -> object:
    if type(mode) is str and "w" in mode:
        return whole.opened(_open, file, mode, buffering, encoding, errors, newline, closefd, opener)
    if whole.are_hidden() and isinstance(file, (str, bytes, os.PathLike)):
        whole.show(os.path.abspath(os.fsdecode(file)))
    return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)
