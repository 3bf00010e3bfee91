"""Let one rank write what every rank of a single-device script would: whole, once, and before anyone reads it."""

import builtins
import io
import os
import shutil
from typing import TYPE_CHECKING, Any, Callable, Optional, Set

import torch

from . import world as worlds

if TYPE_CHECKING:
    from .run import Run

_WRITES = frozenset("wax+")


class Files:
    """Which files the script writes by name, and whether this process is the one that does."""

    def __init__(self, *, is_closed: bool) -> None:
        self.is_closed = is_closed
        self._written: Set[str] = set()
        self._unread: Set[str] = set()

    def opens(self, file: Any, mode: str) -> bool:
        """Take note of a file that is opened for writing; say whether that is not for this process to do."""
        path = _path(file)
        if path is None or not _WRITES & set(mode) or path.startswith(("/dev/", "/proc/")):
            return False
        self._written.add(path)
        self._unread.add(path)
        return self.is_closed

    def was_written(self, file: Any) -> bool:
        """Say whether a path is one that the script has written, on whichever rank."""
        return _path(file) in self._written

    def is_first_read(self, file: Any) -> bool:
        """Say, once after each writing, that somebody else's words are about to be read."""
        path = _path(file)
        is_first = path in self._unread
        if path is not None:
            self._unread.discard(path)
        return is_first


def _path(file: Any) -> Optional[str]:
    return os.path.abspath(os.fsdecode(file)) if isinstance(file, (str, bytes, os.PathLike)) else None


def install(run: "Run") -> None:
    """Hook torch.save, open() and what renames, removes and makes."""
    if run.world.size == 1:
        return

    def meet() -> None:
        if not run.first_step.is_oracle:
            worlds.barrier(run.world)

    _hook_torch_save(run.files, meet)
    _hook_open(run.files, meet)
    _hook_names(run.files, meet)


def _hook_torch_save(files: Files, meet: Callable[[], None]) -> None:
    original = torch.save

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if not files.opens(f, "w"):
            original(obj, f, *args, **kwargs)
        if files.was_written(f):
            meet()  # whoever loads it next finds it whole

    torch.save = save


def _hook_open(files: Files, meet: Callable[[], None]) -> None:
    original = builtins.open

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if files.opens(file, mode):
            if "b" in mode:
                return io.BytesIO()  # zipfile asks where it is, which a device cannot say
            return original(os.devnull, mode.replace("x", "w"), *args, **kwargs)
        if not _WRITES & set(mode) and files.is_first_read(file):
            meet()
        return original(file, mode, *args, **kwargs)

    builtins.open = opened
    io.open = opened  # what pathlib uses


def _after_writing(original: Callable[..., Any], files: Files, meet: Callable[[], None]) -> Callable[..., Any]:
    def ask(path: Any, *args: Any, **kwargs: Any) -> Any:
        if files.is_first_read(path):
            meet()
        return original(path, *args, **kwargs)

    return ask


def _hook_names(files: Files, meet: Callable[[], None]) -> None:
    """Rename and remove what the script has written on one rank, for all; let a folder be there already."""

    def once(original: Callable[..., Any], *, meets: bool) -> Callable[..., Any]:
        def act(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not files.was_written(path):
                return original(path, *args, **kwargs)
            result = None if files.is_closed else original(path, *args, **kwargs)
            if meets:
                meet()
            return result

        return act

    for name in ("rename", "replace"):
        setattr(os, name, once(getattr(os, name), meets=True))
    for name in ("remove", "unlink"):  # what there is to remove a script may ask the disk, which ranks see differently
        setattr(os, name, once(getattr(os, name), meets=False))
    for name in ("exists", "isfile", "getsize"):
        setattr(os.path, name, _after_writing(getattr(os.path, name), files, meet))
    _hook_mkdir(files)
    _hook_rmtree(files)


def _hook_rmtree(files: Files) -> None:
    """Clear a folder of results on one rank; tempfile's own folders, which it clears with a handler, on each."""
    original = shutil.rmtree

    def rmtree(path: Any, *args: Any, **kwargs: Any) -> None:
        if not files.is_closed or args or kwargs:
            original(path, *args, **kwargs)

    shutil.rmtree = rmtree  # type: ignore[assignment]


def _hook_mkdir(files: Files) -> None:
    original = os.mkdir

    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(path, *args, **kwargs)
        except FileExistsError:
            if not files.is_closed:
                raise  # it was there before, and a single device would be told so too

    os.mkdir = mkdir
