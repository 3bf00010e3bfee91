"""Find the line of the script that runs now."""

import linecache
import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType
from typing import NamedTuple

_INSIDE = ("echelon", "_echelon", "torch")
_LIBRARY = os.path.dirname(linecache.__file__)
_LIBRARIES = (
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    str(Path(__file__).parents[2]) + os.sep,
)


class SourceLine(NamedTuple):
    path: str
    number: int

    def __str__(self) -> str:
        try:
            short = os.path.relpath(self.path)
        except FileNotFoundError:  # the working directory was removed
            return f"{self.path}:{self.number}"
        return f"{self.path if short.startswith('..') else short}:{self.number}"


def of_script() -> SourceLine:
    """Return the innermost line that belongs neither to echelon, nor to PyTorch, nor to Python's library."""
    return of_frame(sys._getframe(1))


def of_frame(frame: FrameType) -> SourceLine:
    while frame.f_back is not None and not is_of_script(frame):
        frame = frame.f_back
    return SourceLine(frame.f_code.co_filename, frame.f_lineno)


def is_of_script(frame: FrameType) -> bool:
    """Say whether a frame belongs neither to echelon, nor to PyTorch, nor to Python's library."""
    path = frame.f_code.co_filename
    top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return top not in _INSIDE and os.path.dirname(path) != _LIBRARY and not path.startswith("<")


def is_called_by_script(frame: FrameType) -> bool:
    """Say whether a frame belongs to the script and to no library; a `with` block calls `__exit__` in between."""
    if frame.f_code.co_name == "__exit__" and frame.f_back is not None:
        frame = frame.f_back
    return is_file_of_script(str(frame.f_globals.get("__file__", "")))


def is_file_of_script(path: str) -> bool:
    """Say whether a file is the script or is imported by it, and belongs to no library that is installed."""
    return not os.path.abspath(path).startswith(_LIBRARIES) and not is_of_package(path)


def is_of_package(path: str) -> bool:
    """Say whether a file is of an installed package, such as transformers, also of one outside of this environment."""
    return not {"site-packages", "dist-packages"}.isdisjoint(os.path.abspath(path).split(os.sep))
