"""The completion scripts of shells: one file for each shell, filled from the rows of every `--help`."""

from __future__ import annotations

from collections.abc import Sequence

from echelon.cli.options import Option
from echelon.spec import RUNS

STAMP = "[0-9]{8}-[0-9]{6}-"
"""The beginning of a run directory's name as a regular expression of shells; the run's short name follows."""


def filled(text: str, **parts: str) -> str:
    """Fill the @NAME@ placeholders of a script."""
    for name, part in {"runs": RUNS, "stamp": STAMP, **parts}.items():
        text = text.replace(f"@{name}@", part)
    return text


def kind(rows: Sequence[Option]) -> str:
    """Return the kind of a value or of operands: "file", …, "words A B", "list A B"; "other": unknown."""
    taken = next((row.takes for row in rows if row.takes), "")
    words = [word for row in rows for word in row.words]
    if taken or not words:
        return taken or "other"
    return f"{'list' if rows[0].is_list else 'words'} {' '.join(words)}"
