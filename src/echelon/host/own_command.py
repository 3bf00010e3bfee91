"""The command that starts echelon once more: installed, or from the single file echelon.pyz."""

from __future__ import annotations

import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def command() -> list[str]:
    """Return the words before a command of echelon, such as `run`."""
    return module("echelon") if not _archive() else [sys.executable, _archive()]


def module(name: str) -> list[str]:
    """Return the words that run a module of echelon; its arguments follow."""
    return [sys.executable, *([_archive()] if _archive() else []), "-m", name]


def ending_with_parent() -> list[str]:
    """Return the words before a command of echelon that ends in order if the process that starts it is killed."""
    begin = "import sys; from echelon.host import own_command; own_command.end_with_parent()"
    return [sys.executable, "-c", f"{begin}; from echelon.cli import main; sys.exit(main())"]


def end_with_parent() -> None:
    """Let this process get SIGTERM when the process that has started it ends, also when that is killed."""
    import ctypes  # most commands do not need it

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _archive() -> str:
    """Return the path of echelon.pyz if this process runs from it; packaging/pyz_main.py sets it."""
    main = sys.modules.get("__main__")
    path = getattr(main, "ARCHIVE", "")
    return path if isinstance(path, str) and path.endswith(".pyz") else ""
