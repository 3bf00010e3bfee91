"""Hook open(): rank 0 gets a file, and the other ranks get a sink that counts the written bytes."""

import builtins
import functools
import io
import os
from typing import Any

from .. import patches
from ..patches import Hooks
from . import sinks, whole
from .sharing import EACH, ONE, TOGETHER, Files, path_of

_WRITES = frozenset("wax+")
_open = builtins.open
_WHY = "A file that all ranks write is written by rank 0."


def install(files: Files, hooks: Hooks) -> None:
    """Hook open() under all of its names."""

    def opened(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: Any = None,
        errors: Any = None,
        newline: Any = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if not isinstance(mode, str) or not _WRITES & set(mode):
            return _open(files.seen(file), mode, buffering, encoding, errors, newline, closefd, opener)
        path = path_of(file)
        way = files.way(path)
        if path is None or way == EACH or (way == ONE and not files.is_closed):
            if path is not None and files.is_fetching and mode.strip("bt+") == "w" and opener is None:
                return sinks.with_text(sinks.appearing(path, mode), mode, buffering, encoding, errors, newline)
            if path is None or way == EACH:
                return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)
            made = whole.opened(_open, file, mode, buffering, encoding, errors, newline, closefd, opener)
            files.begin_writing(path, made)
            return made
        _open(os.devnull, mode.replace("x", "w"), buffering, encoding, errors, newline).close()  # are they valid?
        buffer = _buffer(files, file, mode, (buffering, closefd, opener))
        made = sinks.with_text(buffer, mode, buffering, encoding, errors, newline)
        files.begin_writing(path, made, is_hidden=way == TOGETHER and "w" in mode and "+" not in mode)
        made.on_close = lambda: files.end_writing(path)
        return made

    hooks.put(builtins, "open", _open, opened, why=_WHY)
    patches.replace(io, "open", opened, why=_WHY)  # pathlib uses it
    hooks.when_imported("numpy", _hook_numpy(opened), why=_WHY, attribute="savetxt")
    _hook_old_pathlib(opened)


def _buffer(files: Files, file: Any, mode: str, more: Any) -> Any:
    """Return a file on rank 0, and on other ranks a sink that begins at the file's position."""
    path = str(path_of(file))

    def begin() -> Any:
        return sinks.real(file, mode, *more)

    made = files.act("open for writing", file, begin, tells=lambda buffer: buffer.tell(), instead=0)
    is_copied = "+" in mode and not {"w", "x"} & set(mode)  # the file has content, which the script reads and changes
    if isinstance(made, int):
        made = sinks.Sink(file, files.theirs(path), mode, made)
        files.note_sink(made)
    if is_copied:
        _copy(files, made, path)
    elif "+" in mode:
        made.on_look = functools.partial(_copy, files, made, path)
    if "+" in mode:
        made.on_descriptor = functools.partial(files.note_mapped, path)
    return made


def _copy(files: Files, made: Any, path: str) -> None:
    """Let the other ranks copy the content of rank 0's file before rank 0 changes it."""
    files.meet("read back", path)
    if isinstance(made, sinks.Sink):
        made.copy()
    files.meet("read back", path)


def _hook_numpy(opened: Any) -> Any:
    """Return a hook for numpy.savetxt, which keeps io.open in a table."""

    def act(numpy: Any) -> None:
        openers = getattr(getattr(numpy.lib, "_datasource", None), "_file_openers", None)
        table = getattr(openers, "_file_openers", {})
        if None in table:
            patches.replace(table, None, opened, why=_WHY, name="numpy.lib._datasource._file_openers[None]")

    return act


def _hook_old_pathlib(opened: Any) -> None:
    """Hook the open() that pathlib copied into a class before Python 3.11."""
    import pathlib

    accessor = getattr(pathlib, "_NormalAccessor", None)
    if accessor is not None and hasattr(accessor, "open") and accessor.open is _open:
        patches.replace(accessor, "open", staticmethod(opened), why=_WHY)
