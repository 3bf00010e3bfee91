"""Change names on the disk once for all ranks; questions about a file wait until the file is written."""

import atexit
import inspect
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from .. import patches
from ..function_types import Function
from ..patches import Hooks
from .sharing import EACH, Files, path_of

# function, place and name of the argument with the path that it changes
_CHANGES_OF_OS = {
    "mkdir": (0, "path"),
    "makedirs": (0, "name"),
    "rmdir": (0, "path"),
    "removedirs": (0, "name"),
    "remove": (0, "path"),
    "unlink": (0, "path"),
    "rename": (1, "dst"),
    "renames": (1, "new"),
    "replace": (1, "dst"),
    "link": (1, "dst"),
    "symlink": (1, "dst"),
    "chmod": (0, "path"),
    "utime": (0, "path"),
    "truncate": (0, "path"),
}
_CHANGES_OF_SHUTIL = {
    "rmtree": (0, "path"),
    "copyfile": (1, "dst"),
    "copymode": (1, "dst"),
    "copystat": (1, "dst"),
    "copy": (1, "dst"),
    "copy2": (1, "dst"),
    "copytree": (1, "dst"),
    "move": (1, "dst"),
    "make_archive": (0, "base_name"),
    "unpack_archive": (1, "extract_dir"),
}
_WHY = "A change of the disk that all ranks ask for is made once."
_MOVES = ("rename", "renames", "replace", "move")
_QUESTIONS = ("stat", "lstat", "access", "listdir", "scandir")
_WHAT_OS_CAN = ("supports_dir_fd", "supports_effective_ids", "supports_fd", "supports_follow_symlinks")


def install(files: Files, hooks: Hooks) -> None:
    for module, changes in ((os, _CHANGES_OF_OS), (shutil, _CHANGES_OF_SHUTIL)):
        for name, (place, key) in changes.items():
            hooks.replace(module.__name__, name, partial(changing, files, name, place, key), why=_WHY)
    hooks.replace("pathlib", "Path.touch", partial(changing, files, "touch", 0, "self"), why=_WHY)
    why = "A file that rank 0 writes is asked for when it is whole."
    for name in _QUESTIONS:
        hooks.replace("os", name, partial(_asking, files), why=why)
    _hook_tempfile(files, hooks)
    _hook_old_pathlib()


def changing(files: Files, name: str, place: int, key: str, original: Function) -> Function:
    """Return a function in place of one that changes the path in its argument."""

    def change(*args: object, **kwargs: object) -> Any:
        target = args[place] if len(args) > place else kwargs.get(key, "" if name == "unpack_archive" else None)
        if any(kwargs.get(each) is not None for each in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
            return original(*args, **kwargs)
        source = path_of(args[0] if args else kwargs.get("src")) if name in _MOVES else None
        if files.was_done_later(name, path_of(target), source):
            files.note_written(str(path_of(target)))
            return target if place else None
        if source is not None:
            files.note_written(source)
        way = files.way(path_of(target))
        if way == EACH and name in ("mkdir", "makedirs") and files.is_fetching:
            return _make(original, *args, **kwargs)
        result = files.act(name, target, lambda: original(*args, **kwargs), instead=target if place else None)
        if files.is_closed and way != EACH and name in _MOVES:
            _drop_own(files, args[0] if args else kwargs.get("src"))
        return result

    _stand_for(original, change)
    return change


def _make(original: Callable[..., object], path: Any, *args: object, **kwargs: object) -> None:
    """Make a folder that another rank may be making too."""
    try:
        original(path, *args, **kwargs)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _drop_own(files: Files, source: object) -> None:
    path = path_of(source)
    if path is None or not files.is_own(path):
        return
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.exists(path):
        os.remove(path)


def _asking(files: Files, original: Callable[..., object]) -> Function:
    def ask(*args: object, **kwargs: object) -> object:
        return original(files.seen(args[0]), *args[1:], **kwargs) if args else original(**kwargs)

    _stand_for(original, ask)
    return ask


def _stand_for(original: object, new: object) -> None:
    """Add a hook to os's sets of functions that support an option, if the original is in them."""
    for name in _WHAT_OS_CAN:
        if original in getattr(os, name):
            getattr(os, name).add(new)


def _hook_tempfile(files: Files, hooks: Hooks) -> None:
    """Give temporary files to the rank that makes them; a temporary folder inside a folder of the script is shared."""

    def wrap(original: Function) -> Function:
        signature = inspect.signature(original)

        @wraps(original)
        def make(*args: object, **kwargs: object) -> object:
            bound = signature.bind(*args, **kwargs)
            is_aside = files.is_closed and files.way(path_of(bound.arguments.get("dir"))) != EACH
            if is_aside:
                bound.arguments["dir"] = None  # the folder of the script gets the file of one rank alone
            made = original(*bound.args, **bound.kwargs)
            name = made[1] if isinstance(made, tuple) else getattr(made, "name", made)
            files.keep_own(name)
            if is_aside:
                atexit.register(_remove, name)
            return made

        return make

    def wrap_folder(original: Function) -> Function:
        own = wrap(original)

        def make(suffix: object = None, prefix: object = None, dir: object = None) -> object:  # noqa: A002
            if dir is None or path_of(dir) == os.path.abspath(tempfile.gettempdir()):
                return own(suffix, prefix)
            return files.act("mkdtemp", dir, lambda: original(suffix, prefix, dir))

        return make

    why = "A temporary file belongs to the rank that makes it."
    hooks.replace("tempfile", "mkstemp", wrap, why=why)
    hooks.replace("tempfile", "NamedTemporaryFile", wrap, why=why)
    hooks.replace("tempfile", "mkdtemp", wrap_folder, why=why)


def _remove(name: Any) -> None:
    if os.path.exists(name):
        os.remove(name)


def _hook_old_pathlib() -> None:
    """Hook the functions that pathlib copied into a class before Python 3.11."""
    accessor = getattr(pathlib, "_NormalAccessor", None)
    for name in (*_CHANGES_OF_OS, *_QUESTIONS) if accessor is not None else ():
        if hasattr(accessor, name):
            patches.replace(accessor, name, staticmethod(getattr(os, name)), why=_WHY)


# module, function, place and name of the argument with the file or folder that it fills
_FUNCTIONS = (
    ("urllib.request", "urlretrieve", 1, "filename"),
    ("torch.hub", "download_url_to_file", 1, "dst"),
    ("torchvision.datasets.utils", "download_url", 1, "root"),
    ("torchvision.datasets.utils", "download_file_from_google_drive", 1, "root"),
    ("torchvision.datasets.utils", "extract_archive", 1, "to_path"),
    ("gdown", "download", 1, "output"),
    ("wget", "download", 1, "out"),
)
_WHY_DOWNLOADS = "A file is downloaded, or unpacked, by one rank for all."
_UNPACK = (
    ("zipfile", "ZipFile.extractall", 1),
    ("zipfile", "ZipFile.extract", 2),
    ("tarfile", "TarFile.extractall", 1),
    ("tarfile", "TarFile.extract", 2),
)


def install_downloads(files: Files, hooks: Hooks) -> None:
    """Hook downloads and archives, now or when their modules are imported."""
    for module, function, place, key in _FUNCTIONS:
        hooks.replace(module, function, partial(changing, files, function, place, key), why=_WHY_DOWNLOADS)
    for module, function, place in _UNPACK:
        hooks.replace(module, function, partial(_unpacking, files, function, place), why=_WHY_DOWNLOADS)
    hooks.when_imported("urllib.error", _let_errors_travel, why="An error of a download reaches all ranks.")


def _unpacking(files: Files, name: str, place: int, original: Callable[..., object]) -> Function:
    def unpack(*args: object, **kwargs: object) -> object:
        folder = args[place] if len(args) > place else kwargs.get("path")
        return files.act(name, folder or os.getcwd(), lambda: original(*args, **kwargs))

    return unpack


def _let_errors_travel(errors: Any) -> None:
    """Let an HTTPError travel to other ranks without its open connection."""
    import copyreg

    def reduce(error: Any) -> object:
        return errors.HTTPError, (error.url, error.code, error.msg, None, None)

    why = "An error of a download reaches all ranks."
    patches.replace(copyreg.dispatch_table, errors.HTTPError, reduce, why=why, name="copyreg.dispatch_table[HTTPError]")
