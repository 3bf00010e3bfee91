"""SQLite and HDF5 write into the middle of a file: rank 0 does so, and other ranks work on their own copies."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

from ..function_types import Function
from ..patches import Hooks
from .sharing import EACH, ONE, Files, path_of

_WHY = "A database is written by rank 0; the other ranks work on a copy."
Written = dict[int, tuple[str, str]]  # by HDF5's id: the path that is open for writing, and this rank's own copy
_MOST_COPIED_BYTES = 1 << 28  # this run did not make a larger file, and opens it for reading


def install(files: Files, hooks: Hooks) -> None:
    for module in ("sqlite3", "sqlite3.dbapi2"):
        hooks.replace(module, "connect", partial(_connecting, files), why=_WHY)
    written: Written = {}
    hooks.replace("h5py", "File.__init__", partial(_opening, files, written), why=_WHY)
    hooks.replace("h5py", "File.close", partial(_closing, files, written), why=_WHY)


def _connecting(files: Files, original: Callable[..., object]) -> Function:
    if getattr(original, "_echelon_is_hooked", False):
        return original  # one function under two names

    def connect(database: object, *args: object, **kwargs: object) -> object:
        is_file = not str(database).startswith((":memory:", "file:")) and bool(database)
        path = path_of(database) if is_file else None
        way = files.way(path)
        if path is None or way == EACH or (way == ONE and not files.is_closed):
            return original(database, *args, **kwargs)
        made = files.act("sqlite3.connect", path, lambda: original(database, *args, **kwargs), tells=lambda _: None)
        if files.is_closed:
            made = _copy_of_database(original, files.theirs(path), *args, **kwargs)
        files.meet("sqlite3.connect", path)  # nothing is changed before all have their copy
        return made

    connect._echelon_is_hooked = True  # type: ignore[attr-defined]
    return connect


def _copy_of_database(connect: Any, path: str, *args: object, **kwargs: object) -> object:
    """Return a connection to a copy in memory; for a large file, a read-only connection to the file itself."""
    kwargs = {**kwargs, "uri": True}
    reading = "file:{}?mode=ro".format(path.replace("%", "%25").replace("?", "%3f").replace("#", "%23"))
    if not os.path.exists(path):
        return connect(":memory:", *args, **kwargs)
    if os.path.getsize(path) > _MOST_COPIED_BYTES:
        return connect(reading, *args, **kwargs)
    source = connect(reading, uri=True)
    copy = connect(":memory:", *args, **kwargs)
    source.backup(copy)
    source.close()
    return copy


def _opening(files: Files, written: Written, original: Callable[..., object]) -> Function:
    def init(self: Any, name: object, mode: Any = "r", *args: object, **kwargs: object) -> None:
        path = path_of(name)
        way = files.way(path)
        if path is None or mode in (None, "r") or way == EACH or (way == ONE and not files.is_closed):
            original(self, files.seen(name), mode, *args, **kwargs)
            return
        own = _copy_for_itself(files, path, mode) if files.is_closed else ""
        files.meet("h5py.File", path)  # nothing is changed before all have their copy
        files.act("h5py.File", path, lambda: original(self, name, mode, *args, **kwargs))
        if files.is_closed:
            original(self, own, mode if mode in ("r+", "a") else "w", *args, **kwargs)
        written[self.id.id] = (path, own)

    return init


def _copy_for_itself(files: Files, path: str, mode: str) -> str:
    folder = tempfile.mkdtemp(prefix="h5-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    own = os.path.join(folder, os.path.basename(path))
    theirs = files.theirs(path)
    if mode in ("r+", "a") and os.path.exists(theirs):
        shutil.copyfile(theirs, own)
    return own


def _closing(files: Files, written: Written, original: Callable[..., object]) -> Function:
    def close(self: Any) -> None:
        path, own = written.pop(self.id.id, ("", "")) if self.id.valid else ("", "")
        original(self)
        if own:
            shutil.rmtree(os.path.dirname(own))
        if path:
            files.meet("close", path)

    return close
