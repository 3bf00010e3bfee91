"""Errors of scripts that cannot be scaled: a few lines tell the reason, and the run stops."""

import atexit
import linecache
import os
import re
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any

from ..node.frames import OF_RANK_0, own_line
from ..orders.scale import DTENSOR
from . import patches

REFUSED_EXIT_CODE = 2
_untold: "list[ScalingError]" = []
"""Refusals that were not printed yet."""
_OWN = ("echelon", "_echelon")
_INSIDE = (*_OWN, "torch")
_OF_PARTS = ("sharding", "Sharding", "DTensor", "cpu mesh")
_PEER_IS_GONE = ("Connection closed by peer", "Connection reset by peer")
_PATIENCE_SECONDS = 3.0
_WEIGHTS_ARE_PARTS = (
    "echelon: with --scale %s a weight is a DTensor: each rank holds a part. PyTorch cannot do this operation "
    "with a DTensor.\n  way out: echelon run --scale data …, which keeps all weights on every rank\n"
)


class ScalingError(BaseException):
    """The script cannot be trained on several devices as it stands; the message holds the reason and the way out.

    It is no Exception: a script that continues after an error must not continue after this one, and train differently.
    """

    is_told_briefly = True

    def __init__(self, reason: str, way_out: str, *, factor: float = 0.0) -> None:
        super().__init__(f"{reason}\n  way out: {way_out}")
        self.factor = factor
        """The factor by which a gradient is a multiple of the right one; 0 if it is no multiple."""
        _untold.append(self)

    def __reduce__(self) -> Any:
        reason, _, way_out = str(self).partition("\n  way out: ")
        return type(self), (reason, way_out)

    def withdraw(self) -> None:
        """Forget a refusal that echelon has caught, and its repetitions: it does not hold."""
        _untold[:] = [other for other in _untold if str(other) != str(self)]


ScalingError.__module__ = "echelon"  # as people know it, from wherever it was imported


def tell_briefly(how: str = "data") -> None:
    """Print a refusal with the script's own line in place of a traceback; the run fails in any case.

    `how` is the value of --scale: if it shards weights, PyTorch's errors about DTensors get a way out.
    """
    original, of_threads, pid = sys.excepthook, threading.excepthook, os.getpid()

    def excepthook(kind: type, error: BaseException, trace: TracebackType | None) -> None:
        if getattr(error, "is_told_briefly", False):
            tell_at(error, _place_of(trace))
            return
        if any(words in str(error) for words in _PEER_IS_GONE):
            time.sleep(_PATIENCE_SECONDS)  # the agent ends this rank meanwhile: the error is that of another rank
        if not os.environ.get("ECHELON_TRACEBACK"):
            leave_out_own_frames(error)
        original(kind, error, error.__traceback__ or trace)
        tell_owner(error)
        if how in DTENSOR and is_about_parts(error):
            sys.stderr.write(_WEIGHTS_ARE_PARTS % how)  # after the traceback, wherever that is written

    def excepthook_of_threads(caught: Any) -> None:
        if not isinstance(caught.exc_value, ScalingError):
            of_threads(caught)
            return
        tell_at(caught.exc_value, _place_of(caught.exc_traceback))
        end_refused()  # the script's other threads may go on for hours, or wait for this one

    def end() -> None:
        if _untold and os.getpid() == pid:
            tell_at(_untold[0], _place_of(_untold[0].__traceback__))
            end_refused()

    why = "A refusal is told in a few lines, without a traceback."
    patches.replace(sys, "excepthook", excepthook, why=why)
    patches.replace(threading, "excepthook", excepthook_of_threads, why=why)
    atexit.register(end)


_of_library: list[BaseException] = []
_of_rank_0: list[BaseException] = []
_told: list[BaseException] = []
_CALLED = re.compile(r"(?:(?<=[^\w.])|^)([A-Za-z_]\w*)\(")
"""A call of a plain name."""
_HELD = re.compile(r"self\.(_original|_inner|_loss)\(|\S*__torch_function__\(")
"""Calls of functions of others that an object of echelon holds."""


def as_of_library(error: BaseException) -> BaseException:
    """Return an error in place of that of a library; its traceback gets no frames of echelon."""
    _of_library.append(error)
    return error


def of_rank_0(error: BaseException) -> BaseException:
    _of_rank_0[:] = [error]
    return error


def _is_of_library(error: BaseException) -> bool:
    return any(one is error for one in (*_of_library, *_of_rank_0))


def is_own_mistake(error: BaseException) -> bool:
    """Say whether echelon itself has raised an error, and no function of a library or of the script that it called."""
    kind = str(type(error).__module__).partition(".")[0]
    if kind in _OWN or isinstance(error, (OSError, MemoryError, KeyboardInterrupt)) or _is_of_library(error):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_name == "__getattr__":  # hasattr() asks for what is not there
        return False
    return _is_own(trace.tb_frame) and not _passes_on(trace)


def _passes_on(trace: TracebackType) -> bool:
    """Say whether a frame of echelon was calling a function that it got: a replaced one of PyTorch, or the script's.

    Such a function is a local name of the frame, or one of _HELD. One of C has no frame of its own, so the traceback
    ends here.
    """
    frame = trace.tb_frame
    code = frame.f_code
    text = linecache.getline(code.co_filename, trace.tb_lineno, frame.f_globals)
    local = {*code.co_varnames, *code.co_freevars, *code.co_cellvars}
    if sys.version_info < (3, 11):  # the line is known, and not the call in it
        return _HELD.search(text) is not None or any(name in local for name in _CALLED.findall(text))
    first, last, start, end = list(code.co_positions())[trace.tb_lasti // 2]
    if start is not None:
        text = text.encode()[start : end if first == last else None].decode(errors="replace")
    called = _CALLED.match(text)
    return _HELD.match(text) is not None or (called is not None and called.group(1) in local)


def tell_owner(error: BaseException) -> None:
    """Say, below the traceback, whose error it is if it is neither the script's nor a library's."""
    if any(one is error for one in _told):
        return
    _told.append(error)
    if any(one is error for one in _of_rank_0):
        sys.stderr.write(OF_RANK_0 + "\n")
    elif is_own_mistake(error):
        sys.stderr.write(own_line())


def leave_out_own_frames(error: BaseException | None) -> None:
    """Let the traceback of an error of script or library be that of one device, without the frames of echelon."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:  # `raise error from error` is legal
        seen.append(error)
        frames: list[TracebackType] = []
        trace = error.__traceback__
        while trace is not None:
            frames.append(trace)
            trace = trace.tb_next
        if frames and not is_own_mistake(error):  # else the frames of echelon show what is wrong
            for part in reversed([part for part in frames if not _is_own(part.tb_frame)]):
                trace = TracebackType(trace, part.tb_frame, part.tb_lasti, part.tb_lineno)
            error.__traceback__ = trace
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def tell_here(refusal: ScalingError) -> None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (_is_inside(frame) or _is_installed(frame)):
        frame = frame.f_back
    tell_at(refusal, "" if frame is None else _line_of(frame, frame.f_lineno))


def tell_at(error: BaseException, place: str = "") -> None:
    """Print a refusal with a line of the script, or one whose text names its places."""
    _untold.clear()
    file = sys.__stderr__ or sys.stderr  # torch.distributed replaces stderr to prefix lines with the rank
    file.write(f"echelon.{type(error).__name__}: {error}\n{place}")
    file.flush()


def end_refused() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
    os._exit(REFUSED_EXIT_CODE)


def is_about_parts(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return where.startswith("torch.distributed.tensor") or any(word in str(error) for word in _OF_PARTS)


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _OWN


def _is_inside(frame: FrameType) -> bool:
    top = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return top in _INSIDE or os.path.dirname(frame.f_code.co_filename) == os.path.dirname(linecache.__file__)


def _is_installed(frame: FrameType) -> bool:
    """Say whether code belongs to an installed package: tqdm's line says less than the script's own line."""
    return any(name in frame.f_code.co_filename for name in ("site-packages", "dist-packages"))


def _place_of(trace: TracebackType | None) -> str:
    """Return the innermost line of the script; if there is none, the innermost line of a package."""
    place: tuple[FrameType, int] | None = None
    is_own = False
    while trace is not None:
        frame = trace.tb_frame
        if not _is_inside(frame) and (not _is_installed(frame) or not is_own):
            place, is_own = (frame, trace.tb_lineno), not _is_installed(frame)
        trace = trace.tb_next
    if place is None:
        return ""
    return _line_of(*place)


def _line_of(frame: FrameType, number: int) -> str:
    path = frame.f_code.co_filename
    try:
        short = os.path.relpath(path)
    except FileNotFoundError:  # the working directory was removed
        short = path
    line = linecache.getline(path, number).strip()
    return f"  at {path if short.startswith('..') else short}:{number}: {line}\n"
