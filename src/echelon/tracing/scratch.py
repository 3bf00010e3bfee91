"""A script whose training is only traced writes nothing: its files come into a folder that is removed afterwards."""

import builtins
import io
import os
import shutil
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..train import patches

_WHY = "A training that is only traced writes no files and starts no workers."
_WRITING = frozenset("wax+")
_TWO_PATHS = ("rename", "replace", "link", "symlink")
_ONE_PATH = ("remove", "unlink", "rmdir", "removedirs", "truncate", "chmod", "utime")
_READING = ("stat", "listdir", "scandir")


class Scratch:
    """The folder, in which a path of the script has the same path below it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def install(self) -> None:
        original = builtins.open

        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            return original(self._place(file, is_written=bool(_WRITING & set(mode))), mode, *args, **kwargs)

        low = os.open

        def opened_low(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            return low(path if "dir_fd" in kwargs else self._place(path, is_written=writes), flags, *args, **kwargs)

        patches.replace(os, "open", opened_low, why=_WHY)
        patches.replace(builtins, "open", opened, why=_WHY)
        patches.replace(io, "open", opened, why=_WHY)
        self._replace_folders()
        for name in (*_ONE_PATH, *_TWO_PATHS):
            patches.replace(os, name, _nothing, why=_WHY)
        for name in ("rmtree", "move", "copy", "copyfile", "copy2", "copytree"):
            patches.replace(shutil, name, _nothing, why=_WHY)
        patches.replace(torch, "save", _nothing, why=_WHY)
        patches.replace(DataLoader, "__init__", _alone(DataLoader.__init__), why=_WHY)
        os.environ.update(WANDB_MODE="disabled", MLFLOW_TRACKING_URI="", TQDM_DISABLE="1", TENSORBOARD_LOGDIR="")

    def _replace_folders(self) -> None:
        """Make the folders of the script in this one, and let the script see them where it made them."""

        def make(path: Any, *_: object, **settings: object) -> None:
            if settings.get("dir_fd") is None and not os.path.isdir(path):
                _makedirs(self._place(path, is_written=True), exist_ok=True)

        def seeing(original: Callable[..., Any]) -> Callable[..., Any]:
            def look(path: object = ".", *args: object, **kwargs: object) -> Any:
                is_here = path is not None and kwargs.get("dir_fd") is None
                return original(self._place(path, is_written=False) if is_here else path, *args, **kwargs)

            return look

        for name in ("mkdir", "makedirs"):
            patches.replace(os, name, make, why=_WHY)
        for name in _READING:
            patches.replace(os, name, seeing(getattr(os, name)), why=_WHY)

    def _place(self, file: Any, *, is_written: bool) -> Any:
        if isinstance(file, int):
            return file
        path = os.path.abspath(os.fsdecode(file))
        is_no_file = path.startswith(("/dev/", "/proc/")) and not path.startswith("/dev/shm/")
        if is_no_file or path.startswith(self._folder):
            return file
        inside = self._folder + path
        if is_written:
            _makedirs(os.path.dirname(inside), exist_ok=True)
            return inside
        return inside if os.path.exists(inside) else file


_mkdir = os.mkdir


def _makedirs(folder: str, *, exist_ok: bool) -> None:
    """Make folders with the function that was there before."""
    if folder and not os.path.isdir(folder):
        _makedirs(os.path.dirname(folder), exist_ok=exist_ok)
        _mkdir(folder)


def _nothing(*_: object, **__: object) -> None:
    return None


def _alone(original: Callable[..., None]) -> Callable[..., None]:
    """Return the beginning of a loader that loads in this process, and keeps no batches ahead."""

    @wraps(original)  # Lightning makes a loader again, with the arguments that its signature names
    def init(self: object, *args: object, **kwargs: object) -> None:
        settings = dict(zip(_ORDER, args, strict=False))
        settings.update(kwargs)
        settings.update(num_workers=0, pin_memory=False, persistent_workers=False, timeout=0)
        for name in ("prefetch_factor", "multiprocessing_context", "worker_init_fn"):
            settings.pop(name, None)
        original(self, **settings)

    return init


_ORDER = (
    "dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers", "collate_fn", "pin_memory",
    "drop_last", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
)  # fmt: skip
