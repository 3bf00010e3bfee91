"""Let one rank call the functions of libraries that write a file by its path."""

import functools
import os
import shutil
from typing import Any, Callable, Tuple

from ..global_tensors.tensors import GlobalTensor, plain, tensors_of
from ..patches import Hooks
from ..scaling_error import as_of_library
from .folders import changing
from .sharing import Files, path_of

# module, function, place and name of the argument with the file
_FUNCTIONS = (
    ("torch", "save", 1, "f"),
    ("torch.jit", "save", 1, "f"),
    ("torch.jit", "ScriptModule.save", 1, "f"),
    ("torch.jit._script", "RecursiveScriptModule.save", 1, "f"),
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

FULL_BYTES = 1 << 20
"""A disk with less room than this is full."""


def install(files: Files, hooks: Hooks) -> None:
    """Hook these functions, now or when their modules are imported."""
    for module, function, place, key in _FUNCTIONS:
        change = changing(files, "%s.%s" % (module, function), place, key)
        appear = _appearing(files, place, key)
        hooks.replace(
            module, function, with_plain(_both(change, appear)), why="A library writes a file on rank 0 alone."
        )


def _both(outer: Callable[[Any], Any], inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda original: outer(inner(original))


def _appearing(files: Files, place: int, key: str) -> Callable[[Any], Any]:
    """Let a written file appear when it is whole.

    Other ranks, and the next run, may look for the file, and a rank may be killed while it writes. An old snapshot is
    kept until the new file is whole.
    """

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def write(*args: Any, **kwargs: Any) -> Any:
            path = path_of(args[place] if len(args) > place else kwargs.get(key))
            folder = _folder_beside(path, files) if path is not None else ""
            if path is None or not folder:
                return original(*args, **kwargs)
            try:
                temporary = os.path.join(folder, os.path.basename(path))  # the same name: torch.save stores it too
                keywords = {key: temporary} if key in kwargs else {}
                result = original(*(args if keywords else _with(args, place, temporary)), **{**kwargs, **keywords})
                _put_all(temporary, os.path.realpath(path))
            except RuntimeError as error:
                _refuse_full_disk(path, error)
                raise
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return result

        return write

    return wrap


def _folder_beside(path: str, files: Files) -> str:
    """Make a folder for a file until it is whole; return an empty text if the file is written in place."""
    is_other = os.path.exists(path) and not os.path.isfile(path)  # such as /dev/null
    if is_other or not (files.is_acting or files.is_fetching):
        return ""
    path = os.path.realpath(path)
    folder = "%s.%d-%s" % (path, os.getpid(), os.urandom(4).hex())
    try:
        os.mkdir(folder)
    except OSError:
        return ""  # a read-only folder may contain writable files; else the library says what is wrong
    return folder


def _refuse_full_disk(path: str, error: RuntimeError) -> None:
    """Name a full disk, which torch.save() calls an iostream error."""
    status = os.statvfs(os.path.dirname(os.path.realpath(path)))
    if status.f_bavail * status.f_frsize < FULL_BYTES:
        raise as_of_library(RuntimeError("No space left on device: %s (%s)" % (path, error))) from None


def _put_all(temporary: str, path: str) -> None:
    """Move a whole file to its place, after the files that onnx.save(), for one, has put beside it."""
    folder, main = os.path.split(temporary)
    for name in os.listdir(folder):
        if name != main:
            os.replace(os.path.join(folder, name), os.path.join(os.path.dirname(path), name))
    _put(temporary, path)


def _put(temporary: str, path: str) -> None:
    """Move a whole file to its place, with the permissions of the file that it replaces."""
    if os.path.exists(path):
        shutil.copymode(path, temporary)
    os.replace(temporary, path)


def _with(args: Tuple[Any, ...], place: int, value: Any) -> Tuple[Any, ...]:
    return (*args[:place], value, *args[place + 1 :])


def with_plain(wrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let all ranks join the parts of shared tensors before one rank calls the wrapped function."""

    def wrap_plain(original: Any) -> Any:
        wrapped = wrap(original)

        def call(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(one, GlobalTensor) for one in tensors_of(args, kwargs)):
                args, kwargs = plain(args), plain(kwargs)
            return wrapped(*args, **kwargs)

        return call

    return wrap_plain
