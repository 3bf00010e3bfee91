"""Let a script that names staged files by their old paths read the copies on its node's own disk."""

import builtins
import io
import json
import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from . import patches

_WHY = "a script that names staged files by their old paths reads the copy on its node's own disk"
_OF_OS = ("open", "stat", "lstat", "listdir", "scandir", "access", "readlink", "statvfs")


def begin(environ: Mapping[str, str]) -> None:
    """Replace the functions by which Python finds and opens files; a library in C reads the shared disk as before."""
    moved = sorted(json.loads(environ["ECHELON_STAGED"]).items(), key=lambda pair: -len(pair[0]))
    opened = _replaced(builtins.open, moved)
    patches.replace(builtins, "open", opened, why=_WHY)
    patches.replace(io, "open", opened, why=_WHY)  # pathlib uses it
    for name in _OF_OS:
        function = getattr(os, name)
        patches.replace(os, name, _replaced(function, moved), why=_WHY)
        for abilities in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
            if function in abilities:
                abilities.add(getattr(os, name))


def _replaced(function: Callable[..., Any], moved: list[tuple[str, str]]) -> Callable[..., Any]:
    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if options.get("dir_fd") is None:
            arguments = (_place(arguments[0], moved), *arguments[1:]) if arguments else ()
            options |= {name: _place(options[name], moved) for name in ("file", "path") if name in options}
        return function(*arguments, **options)

    return call


def _place(path: Any, moved: list[tuple[str, str]]) -> Any:
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or os.sep not in text:
        return path
    whole = os.path.abspath(text)
    for old, new in moved:
        if whole == old or whole.startswith(old + os.sep):
            return new + whole[len(old) :]
    return path
