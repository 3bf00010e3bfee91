"""Let one rank write what every rank of a single-device script would: whole, once, and before anyone reads it."""

import builtins
import io
import os
from typing import TYPE_CHECKING, Any, Callable, Set

import torch

from . import world as worlds

if TYPE_CHECKING:
    from .run import Run

_WRITES = frozenset("wax+")


class Files:
    """Whether this process writes files by name, and which ones it has been kept from writing."""

    def __init__(self, *, is_closed: bool) -> None:
        self.is_closed = is_closed
        self.kept_from: Set[str] = set()

    def swallows(self, file: Any, mode: str) -> bool:
        """Say whether a file that is opened now is not for this process to write."""
        if not self.is_closed or not _WRITES & set(mode) or not isinstance(file, (str, bytes, os.PathLike)):
            return False
        path = os.path.abspath(os.fsdecode(file))
        if path.startswith(("/dev/", "/proc/")):
            return False
        self.kept_from.add(path)
        return True

    def has_not(self, path: Any) -> bool:
        """Say whether a path is one that this process would have written."""
        is_path = isinstance(path, (str, bytes, os.PathLike))
        return is_path and os.path.abspath(os.fsdecode(path)) in self.kept_from


def install(run: "Run") -> None:
    """Hook torch.save, open() and what renames, removes and makes."""
    if run.world.size == 1:
        return
    _hook_torch_save(run)
    _hook_open(run.files)
    _hook_names(run.files)


def _hook_torch_save(run: "Run") -> None:
    original = torch.save

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        is_named = isinstance(f, (str, os.PathLike))
        if not is_named or not run.files.swallows(f, "w"):
            original(obj, f, *args, **kwargs)
        if is_named and not run.first_step.is_oracle:
            worlds.barrier(run.world)  # whoever loads it next finds it whole

    torch.save = save


def _hook_open(files: Files) -> None:
    original = builtins.open

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if files.swallows(file, mode):
            return original(os.devnull, mode.replace("x", "w"), *args, **kwargs)
        return original(file, mode, *args, **kwargs)

    builtins.open = opened
    io.open = opened  # what pathlib uses


def _hook_names(files: Files) -> None:
    """Rename or remove nothing that this process has not written, and let a folder be there already."""

    def quiet(original: Callable[..., Any]) -> Callable[..., Any]:
        def act(path: Any, *args: Any, **kwargs: Any) -> Any:
            return None if files.has_not(path) else original(path, *args, **kwargs)

        return act

    for name in ("remove", "unlink", "rename", "replace"):
        setattr(os, name, quiet(getattr(os, name)))
    original = os.mkdir

    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(path, *args, **kwargs)
        except FileExistsError:
            if not files.is_closed:
                raise  # it was there before, and a single device would be told so too

    os.mkdir = mkdir
