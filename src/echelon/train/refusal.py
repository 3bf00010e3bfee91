"""What cannot be scaled, or was not, is said in a few lines and stops the run."""

import linecache
import os
import sys
from types import FrameType, TracebackType
from typing import Any, Optional, Tuple

from .wishes import SPREAD

_INSIDE = ("echelon", "_echelon", "torch")
_OF_PARTS = ("sharding", "Sharding", "DTensor", "cpu mesh")
_WEIGHTS_ARE_PARTS = (
    "echelon: with --scale %s a weight is a DTensor, of which each rank holds a part, and the script does what PyTorch "
    "cannot do with one\n  way out: echelon run --scale data …, where every rank has all weights\n"
)


class Refusal(RuntimeError):
    """The script cannot be trained on several devices as it stands; the message holds the reason and the way out."""

    is_told_briefly = True

    def __init__(self, reason: str, way_out: str, *, factor: float = 0.0) -> None:
        super().__init__("%s\n  way out: %s" % (reason, way_out))
        self.factor = factor
        """By what a gradient is a multiple of the right one; 0: it is none."""


Refusal.__module__ = "echelon"  # as people know it, from wherever it was imported


def tell_briefly(how: str = "data") -> None:
    """Let a refusal that nobody catches be told with the script's own line, and not with how we came to it.

    `how` is what --scale says: where it cuts weights, PyTorch's own words about them get the way out.
    """
    original = sys.excepthook

    def excepthook(kind: Any, error: BaseException, trace: Optional[TracebackType]) -> None:
        if not getattr(error, "is_told_briefly", False):
            original(kind, error, trace)
            if how in SPREAD and is_about_parts(error):
                sys.stderr.write(_WEIGHTS_ARE_PARTS % how)  # after the traceback, wherever that is written
            return
        said = "echelon.%s: %s\n%s" % (kind.__name__, error, _place_of(trace))
        file = sys.__stderr__ or sys.stderr  # torch.distributed has put its own there, which begins lines with the rank
        file.write(said)
        file.flush()

    sys.excepthook = excepthook


def is_about_parts(error: BaseException) -> bool:
    """Say whether PyTorch could not do something with a tensor of which each rank holds a part."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return where.startswith("torch.distributed.tensor") or any(word in str(error) for word in _OF_PARTS)


def _is_inside(frame: FrameType) -> bool:
    """Say whether code is ours, PyTorch's or Python's own."""
    top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return top in _INSIDE or os.path.dirname(frame.f_code.co_filename) == os.path.dirname(linecache.__file__)


def _is_installed(frame: FrameType) -> bool:
    """Say whether code is that of a package: tqdm's line says less than the script's that uses it."""
    return any(name in frame.f_code.co_filename for name in ("site-packages", "dist-packages"))


def _place_of(trace: Optional[TracebackType]) -> str:
    """Return the innermost line that is the script's; where it has none, that of something which it uses."""
    found: Optional[Tuple[FrameType, int]] = None
    is_own = False
    while trace is not None:
        frame = trace.tb_frame
        if not _is_inside(frame) and (not _is_installed(frame) or not is_own):
            found, is_own = (frame, trace.tb_lineno), not _is_installed(frame)
        trace = trace.tb_next
    if found is None:
        return ""
    path, number = found[0].f_code.co_filename, found[1]
    short = os.path.relpath(path)
    line = linecache.getline(path, number).strip()
    return "  at %s:%d: %s\n" % (path if short.startswith("..") else short, number, line)
