"""Let a script that names staged files by their old paths read the copies on its node's own disk."""

import builtins
import errno
import io
import json
import os
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any

from . import new_processes, patches

_WHY = "a script that names staged files by their old paths reads the copy on its node's own disk"
_WHY_NOT = "a script that changes staged files changes the old ones, and reads those from then on"
_READING = ("stat", "lstat", "listdir", "access", "readlink")
_CHANGING = ("mkdir", "unlink", "remove", "rmdir", "rename", "replace", "link", "symlink", "chmod", "utime", "truncate")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


_NOT_OF_CHILDREN = dict.fromkeys(("ECHELON_SCALE", "ECHELON_PROFILE"))


class _Copies:
    """The copies by the old paths; one that the script changes is left to itself."""

    def __init__(self, targets: Mapping[str, str]) -> None:
        self._targets = targets
        self._left: set[str] = set()

    def _of(self, path: Any) -> tuple[str, str]:
        """Return the copy with the rest of a path; two empty texts for a path of something else."""
        text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
        whole = os.path.abspath(text) if isinstance(text, str) and text else ""
        inside = [old for old in self._targets if whole == old or whole.startswith(old + os.sep)]
        longest = max(inside, key=len, default="")
        return (self._targets[longest], whole[len(longest) :]) if longest else ("", "")

    def read(self, path: Any) -> Any:
        """Return the path in the copy."""
        target, rest = self._of(path)
        return target + rest if target and target not in self._left else path

    def leave(self, path: Any) -> None:
        """Leave the copy of a path that the script changes; refuse to change the copy itself, which will be removed."""
        self._left.add(self._of(path)[0])
        text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
        whole = os.path.abspath(text) if isinstance(text, str) and text else ""
        if any(whole == target or whole.startswith(target + os.sep) for target in self._targets.values()):
            raise PermissionError(errno.EACCES, "staged files are read-only: they are removed after the run", whole)

    def opened(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return open(), whose mode says whether it reads."""

        @wraps(original)
        def call(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if set(mode) & set("wax+"):
                self.leave(file)
            return original(self.read(file), mode, *arguments, **options)

        return call

    def opened_by_flags(self, original: Callable[..., int]) -> Callable[..., int]:
        @wraps(original)
        def call(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
            if options.get("dir_fd") is not None:
                return original(path, flags, *arguments, **options)
            if flags & _WRITING:
                self.leave(path)
            return original(self.read(path), flags, *arguments, **options)

        return call

    def reading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            moved = path if options.get("dir_fd") is not None else self.read(path)
            return original(moved, *arguments, **options)

        return call

    def changing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def call(*arguments: Any, **options: Any) -> Any:
            for path in [*arguments[:2], *options.values()]:
                if isinstance(path, (str, os.PathLike)):
                    self.leave(path)
            return original(*arguments, **options)

        return call


def begin(environ: Mapping[str, str], archive: str) -> None:
    """Replace the functions by which Python finds and opens files; a library in C reads the shared disk as before."""
    new_processes.give(archive, lambda: None if new_processes.OF_RANK in os.environ else _NOT_OF_CHILDREN, why=_WHY)
    copies = _Copies(json.loads(environ["ECHELON_STAGED"]))
    opened = copies.opened(builtins.open)
    patches.replace(builtins, "open", opened, why=_WHY)
    patches.replace(io, "open", opened, why=_WHY)  # pathlib uses it
    patches.replace(os, "open", copies.opened_by_flags(os.open), why=_WHY)
    put = partial(patches.replace, os)
    for names, wrapped, why in ((_READING, copies.reading, _WHY), (_CHANGING, copies.changing, _WHY_NOT)):
        for name in names:
            function = getattr(os, name)
            put(name, wrapped(function), why=why)
            for can in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
                if function in can:
                    can.add(getattr(os, name))
