"""The command that starts echelon once more: installed, or from the single file echelon.pyz."""

from __future__ import annotations

import sys


def command() -> list[str]:
    """Return the words before a command of echelon, such as `run`."""
    return module("echelon") if not _archive() else [sys.executable, _archive()]


def module(name: str) -> list[str]:
    """Return the words that run a module of echelon; its arguments follow."""
    return [sys.executable, *([_archive()] if _archive() else []), "-m", name]


def _archive() -> str:
    """Return the path of echelon.pyz if this process runs from it; packaging/pyz_main.py sets it."""
    main = sys.modules.get("__main__")
    path = getattr(main, "ARCHIVE", "")
    return path if isinstance(path, str) and path.endswith(".pyz") else ""
