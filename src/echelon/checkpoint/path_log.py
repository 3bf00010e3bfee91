"""A log beside the checkpoints: the paths that the script has written, a JSON object a line.

A killed run has written files after its last checkpoint, and only this log knows them.
"""

import json
import os
from typing import Dict


def append(log: str, path: str, *, was_there: bool) -> None:
    """Add a path, and whether it was there before the script wrote it."""
    os.makedirs(os.path.dirname(log), exist_ok=True)
    with open(log, "a", encoding="utf-8") as file:
        file.write(json.dumps({"path": path, "was_there": was_there}) + "\n")


def read(log: str) -> Dict[str, bool]:
    """Return the paths, each with whether it was there before; none if there is no log."""
    try:
        with open(log, encoding="utf-8") as file:
            lines = [line for line in file if line.endswith("\n")]  # a killed process may have left half a line
    except FileNotFoundError:
        return {}
    found: Dict[str, bool] = {}
    for entry in map(json.loads, lines):
        found.setdefault(entry["path"], entry["was_there"])
    return found
