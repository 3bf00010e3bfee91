"""What is fetched from elsewhere, and unpacked, is fetched and unpacked by one rank."""

import os
from typing import Any, Callable

from .. import patches
from ..patches import Hooks
from .folders import changing
from .sharing import Files

# module, function, and which argument names the file or folder that it fills
_FUNCTIONS = (
    ("urllib.request", "urlretrieve", 1, "filename"),
    ("torch.hub", "download_url_to_file", 1, "dst"),
    ("torchvision.datasets.utils", "download_url", 1, "root"),
    ("torchvision.datasets.utils", "download_file_from_google_drive", 1, "root"),
    ("torchvision.datasets.utils", "extract_archive", 1, "to_path"),
    ("gdown", "download", 1, "output"),
    ("wget", "download", 1, "out"),
)
_WHY = "A file is downloaded, or unpacked, by one rank for all."
_UNPACK = (
    ("zipfile", "ZipFile.extractall", 1),
    ("zipfile", "ZipFile.extract", 2),
    ("tarfile", "TarFile.extractall", 1),
    ("tarfile", "TarFile.extract", 2),
)


def install(files: Files, hooks: Hooks) -> None:
    """Hook them now or when they are imported."""
    for module, function, place, key in _FUNCTIONS:
        hooks.replace(module, function, changing(files, function, place, key), why=_WHY)
    for module, function, place in _UNPACK:
        hooks.replace(module, function, _unpacking(files, function, place), why=_WHY)
    hooks.when_imported("urllib.error", _let_errors_travel, why="An error of a download reaches all ranks.")


def _unpacking(files: Files, name: str, place: int) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        def unpack(*args: Any, **kwargs: Any) -> Any:
            folder = args[place] if len(args) > place else kwargs.get("path")
            return files.act(name, folder or os.getcwd(), lambda: original(*args, **kwargs))

        return unpack

    return wrap


def _let_errors_travel(errors: Any) -> None:
    """An HTTPError holds an open connection, which no other process can have."""
    import copyreg

    def reduce(error: Any) -> Any:
        return errors.HTTPError, (error.url, error.code, error.msg, None, None)

    why = "An error of a download reaches all ranks."
    patches.replace(copyreg.dispatch_table, errors.HTTPError, reduce, why=why, name="copyreg.dispatch_table[HTTPError]")
