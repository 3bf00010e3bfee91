"""Find locks that a dead build left: PyTorch's extensions, DeepSpeed's operators among them, wait for them for ever."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from echelon.dialects.ranks import Ranks
from echelon.environment import digits
from echelon.errors import UsageError
from echelon.hardware import files
from echelon.script.reading import Source
from echelon.units import duration

FOLDER = "TORCH_EXTENSIONS_DIR"
DEAD_SECONDS = 1800.0  # no file of an extension compiles longer than this, and each finished file changes the folder
BUILDS = ("torch.utils.cpp_extension.load", "torch.utils.cpp_extension.load_inline")
"""Functions that take a lock (torch 2.13, cpp_extension.py, FileBaton)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """The lock of an extension that no process of this machine holds."""

    path: str
    idle_seconds: float
    """The time since anything in the extension's folder changed."""

    @property
    def extension(self) -> str:
        return os.path.basename(os.path.dirname(self.path))


def refuse_dead(source: Source, ranks: Ranks, environ: Mapping[str, str], now: Callable[[], float]) -> tuple[str, ...]:
    """Raise UsageError for a dead lock, return a note for one that may be dead; skip scripts that build nothing."""
    if not _builds(source, environ):
        return ()
    locks = sorted(_left(_roots(ranks, environ), now()), key=lambda lock: -lock.idle_seconds)
    dead = [lock for lock in locks if lock.idle_seconds >= DEAD_SECONDS]
    if dead:
        lock, idle = dead[0], duration(dead[0].idle_seconds)
        raise UsageError(
            f"a build of {lock.extension} has ended without removing its lock, {lock.path}; nothing has "
            f"changed there for {idle}, so every rank that needs it would wait forever",
            hint=shlex.join(["rm", *(lock.path for lock in dead)]),
        )
    return tuple(
        f"no process here holds {lock.path}; unless another node builds {lock.extension} now, ranks that need "
        f"it wait forever: {shlex.join(['rm', lock.path])}"
        for lock in locks[:1]
    )


def _builds(source: Source, environ: Mapping[str, str]) -> bool:
    """Say whether ranks will surely build an extension, or load a built one."""
    by_accelerate = environ.get("ACCELERATE_USE_DEEPSPEED", "").casefold() == "true"
    return by_accelerate or "deepspeed" in source.certain_imports or bool(source.calls(BUILDS))


def _roots(ranks: Ranks, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the folders that hold the extensions, one subfolder each (cpp_extension._get_build_directory)."""
    root = environ.get(FOLDER) or ranks.settings.get(FOLDER)
    if root:
        yield root
        return
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME", ""), ".cache")
    default = os.path.join(cache, "torch_extensions")
    begin = f"py{sys.version_info.major}{sys.version_info.minor}{getattr(sys, 'abiflags', '')}_"
    yield from (os.path.join(default, name) for name in files.names(default) if name.startswith(begin))


def _left(roots: Iterator[str], now: float) -> Iterator[Lock]:
    for root in roots:
        for name in files.names(root):
            folder = os.path.join(root, name)
            path = os.path.join(folder, "lock")
            try:
                changed = max(os.stat(entry).st_mtime for entry in (path, folder, *_paths(folder)))
            except OSError:
                continue  # the folder is missing, or was just removed
            if not _is_held(path):
                yield Lock(path=path, idle_seconds=now - changed)


def _paths(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in files.names(folder)]


def _is_held(path: str) -> bool:
    """Say whether a process of this machine has the file open, as a builder does until it is done."""
    wanted = os.stat(path)
    for process in files.names("/proc"):
        for entry in _paths(f"/proc/{process}/fd") if digits.is_number(process) else ():
            try:
                held = os.stat(entry)
            except OSError:
                continue  # closed meanwhile, or another user's
            if (held.st_dev, held.st_ino) == (wanted.st_dev, wanted.st_ino):
                return True
    return False
