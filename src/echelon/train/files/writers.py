"""Libraries that write to a path by themselves: their function as a whole is what one rank does."""

import functools
import os
import shutil
from typing import Any, Callable, Tuple

from ..global_tensors.tensors import GlobalTensor, plain, tensors_of
from ..patches import Hooks
from .folders import changing
from .sharing import Files, path_of

# module, function, and which argument names the file
_FUNCTIONS = (
    ("torch", "save", 1, "f"),
    ("torch.jit", "save", 1, "f"),
    ("torch.jit", "ScriptModule.save", 1, "f"),
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


def install(files: Files, hooks: Hooks) -> None:
    """Hook them now or when they are imported."""
    for module, function, place, key in _FUNCTIONS:
        change = changing(files, "%s.%s" % (module, function), place, key)
        appear = _appearing(files, place, key)
        hooks.replace(
            module, function, with_plain(_both(change, appear)), why="A library writes a file on rank 0 alone."
        )


def _both(outer: Callable[[Any], Any], inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda original: outer(inner(original))


def _appearing(files: Files, place: int, key: str) -> Callable[[Any], Any]:
    """Let what is written appear when it is whole.

    While samples are fetched others may look for it meanwhile. A snapshot that is there already is kept until then: a
    rank that fails has all others ended, in the midst of what they write.
    """

    def wrap(original: Any) -> Any:
        @functools.wraps(original)
        def write(*args: Any, **kwargs: Any) -> Any:
            path = path_of(args[place] if len(args) > place else kwargs.get(key))
            folder = _folder_beside(path, files) if path is not None else ""
            if path is None or not folder:
                return original(*args, **kwargs)
            try:
                temporary = os.path.join(folder, os.path.basename(path))  # of that name: torch.save stores it too
                given = {key: temporary} if key in kwargs else {}
                result = original(*(args if given else _with(args, place, temporary)), **{**kwargs, **given})
                _put(temporary, os.path.realpath(path))
            finally:
                shutil.rmtree(folder)
            return result

        return write

    return wrap


def _folder_beside(path: str, files: Files) -> str:
    """Make a folder in which a file is written before it takes its place; empty: it is written where it is."""
    is_there = os.path.isfile(path)
    if not (is_there if files.is_acting else files.is_fetching):
        return ""
    path = os.path.realpath(path)
    folder = "%s.%d-%s" % (path, os.getpid(), os.urandom(4).hex())
    try:
        os.mkdir(folder)
    except OSError:
        if not is_there:
            raise
        return ""  # a folder where nothing can be made may have files that can be written
    return folder


def _put(temporary: str, path: str) -> None:
    """Put a file that is whole in its place, with the permissions of the one before it."""
    if os.path.exists(path):
        shutil.copymode(path, temporary)
    os.replace(temporary, path)


def _with(args: Tuple[Any, ...], place: int, value: Any) -> Tuple[Any, ...]:
    return (*args[:place], value, *args[place + 1 :])


def with_plain(wrap: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Let all ranks put the parts of shared tensors together before one of them does what is wrapped."""

    def wrap_plain(original: Any) -> Any:
        wrapped = wrap(original)

        def call(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(one, GlobalTensor) for one in tensors_of(args, kwargs)):
                args, kwargs = plain(args), plain(kwargs)
            return wrapped(*args, **kwargs)

        return call

    return wrap_plain
