"""Let one rank write what every rank of a single-device script would: whole, once, and before anyone reads it."""

import builtins
import io
import os
from typing import Any, Callable, Set

import torch

from . import world as worlds
from .run import Run

_WRITES = frozenset("wax+")


def install(run: Run) -> None:
    """Hook torch.save for all ranks, and for all but the first whatever writes a file by name."""
    if run.world.size == 1:
        return
    _hook_torch_save(run)
    if not run.is_main:
        swallowed: Set[str] = set()
        _hook_open(swallowed)
        _hook_names(swallowed)


def _hook_torch_save(run: Run) -> None:
    original = torch.save

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if run.is_main or not isinstance(f, (str, os.PathLike)):
            original(obj, f, *args, **kwargs)
        worlds.barrier(run.world)  # whoever loads it next finds it whole

    torch.save = save


def _hook_open(swallowed: Set[str]) -> None:
    original = builtins.open

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, (str, bytes, os.PathLike)) and _WRITES & set(mode) and _is_shared(os.fsdecode(file)):
            swallowed.add(os.path.abspath(os.fsdecode(file)))
            file = os.devnull
            mode = mode.replace("x", "w")
        return original(file, mode, *args, **kwargs)

    builtins.open = opened
    io.open = opened  # what pathlib uses


def _is_shared(path: str) -> bool:
    """Say whether all ranks mean the same file: not a device, a pipe of the kernel, or a file of this process."""
    path = os.path.abspath(path)
    return not path.startswith(("/dev/", "/proc/")) and "echelon" not in os.path.basename(path)


def _hook_names(swallowed: Set[str]) -> None:
    """Rename or remove nothing that this rank has not written, and let a folder be there already."""

    def quiet(original: Callable[..., Any]) -> Callable[..., Any]:
        def act(path: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, (str, bytes, os.PathLike)) and os.path.abspath(os.fsdecode(path)) in swallowed:
                return None
            return original(path, *args, **kwargs)

        return act

    for name in ("remove", "unlink", "rename", "replace"):
        setattr(os, name, quiet(getattr(os, name)))
    original = os.mkdir

    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(path, *args, **kwargs)
        except FileExistsError:
            pass  # another rank was first; if it was there before, rank 0 says so

    os.mkdir = mkdir
