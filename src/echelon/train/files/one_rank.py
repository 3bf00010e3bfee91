"""Let the files of a single rank appear when they are whole; nothing else differs from plain Python."""

import builtins
import io
import os
import sys
from typing import Any

from .. import patches, scaling_error
from . import library_writers, whole

_open = builtins.open
_WHY = "A file appears when it is whole, so a killed process leaves no torn file."


def install() -> None:
    """Hook open() and the functions of libraries that write a file, now or when they are imported."""
    hooks = patches.Hooks()
    hooks.put(builtins, "open", _open, _opened, why=_WHY)
    patches.replace(io, "open", _opened, why=_WHY)  # pathlib uses it
    for module, function, place, key in library_writers.FUNCTIONS:
        hooks.replace(module, function, whole.writing(place, key, library_writers.refuse_full_disk), why=_WHY)
    hooks.apply()
    original = sys.excepthook

    def excepthook(kind: Any, error: BaseException, trace: Any) -> None:
        if not os.environ.get("ECHELON_TRACEBACK"):
            scaling_error.leave_out_own_frames(scaling_error.as_of_library(error))
        original(kind, error, error.__traceback__ or trace)

    why = "The traceback of a script's own error has no frames of echelon."
    patches.replace(sys, "excepthook", excepthook, why=why)


def _opened(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: Any = None,
    errors: Any = None,
    newline: Any = None,
    closefd: bool = True,
    opener: Any = None,
) -> Any:
    if type(mode) is str and "w" in mode:
        return whole.opened(_open, file, mode, buffering, encoding, errors, newline, closefd, opener)
    if whole.are_hidden() and isinstance(file, (str, bytes, os.PathLike)):
        whole.show(os.path.abspath(os.fsdecode(file)))
    return _open(file, mode, buffering, encoding, errors, newline, closefd, opener)
