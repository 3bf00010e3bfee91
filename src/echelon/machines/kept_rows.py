"""Rows of JSON that echelon keeps in the user's folder: a bounded number, written beside and renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from echelon.environment import regular_files
from echelon.machines import files

Row = dict[str, Any]
MOST_ROWS = 500
FORMAT = 1


def path(name: str, environ: Mapping[str, str]) -> str:
    """Return the path of a file of rows: ~/.config/echelon/NAME.json."""
    return os.path.join(os.path.dirname(files.user_folder(environ)), f"{name}.json")


def read(name: str, environ: Mapping[str, str]) -> list[Row]:
    """Return the rows, the oldest first; none if there is no file, or another program wrote it."""
    try:
        data = json.loads(regular_files.read_text(path(name, environ)))
    except (OSError, ValueError):
        return []
    rows = data.get("rows") if isinstance(data, dict) and data.get("format") == FORMAT else None
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def add(name: str, new: Sequence[Row], environ: Mapping[str, str]) -> bool:
    """Append rows, and forget the oldest; return whether the file could be written: a home may be read-only."""
    where = path(name, environ)
    rows = [*(row for row in read(name, environ) if row not in new), *new][-MOST_ROWS:]
    try:
        files.write(where, json.dumps({"format": FORMAT, "rows": rows}))
    except OSError:
        return False
    return True
