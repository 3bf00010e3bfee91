"""A log beside the checkpoints: the paths that the script has written, a JSON object a line.

A killed run has written files after its last checkpoint, and only this log knows them.
"""

import json
import os
from typing import Any, Dict, Optional, Tuple

from .errors import writing


def append(log: str, path: str, *, was_there: bool) -> None:
    """Add a path, and whether it was there before the script wrote it; raise WriteError if that is impossible."""
    line = json.dumps({"path": path, "was_there": was_there}).encode() + b"\n"
    with writing(log):
        os.makedirs(os.path.dirname(log), exist_ok=True)
        with open(log, "a+b") as file:
            file.write((b"\n" if _is_torn(file) else b"") + line)


def read(log: str) -> Dict[str, bool]:
    """Return the paths, each with whether it was there before; none if there is no log, or if it cannot be read."""
    try:
        with open(log, "rb") as file:
            entries = [entry for line in file if (entry := _entry(line)) is not None]
    except OSError:
        return {}
    paths: Dict[str, bool] = {}
    for path, was_there in entries:
        paths.setdefault(path, was_there)
    return paths


def _is_torn(file: Any) -> bool:
    """Say whether a killed process, or a full disk, has left half a line at the end."""
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) != b"\n")


def _entry(line: bytes) -> Optional[Tuple[str, bool]]:
    """Return what a line says; None for a part of a line, or one that was altered."""
    try:
        entry = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        return None
    return entry["path"], bool(entry.get("was_there"))
