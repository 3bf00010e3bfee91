"""What each shell runs to complete a line of echelon: a file a shell, which the rows of every `--help` fill."""

from __future__ import annotations

from collections.abc import Sequence

from echelon.cli.options import Option
from echelon.launch.run_directory import RUNS

STAMP = "[0-9]{8}-[0-9]{6}-"
"""How the folder of a run begins, in the regular expressions of shells: the name of the run stands behind it."""


def filled(text: str, **parts: str) -> str:
    """Return a script with its parts where @NAME@ stands."""
    for name, part in {"runs": RUNS, "stamp": STAMP, **parts}.items():
        text = text.replace(f"@{name}@", part)
    return text


def kind(rows: Sequence[Option]) -> str:
    """Return what a value is, or what operands are: "file", …, "words A B", "list A B"; "other": not known."""
    taken = next((row.takes for row in rows if row.takes), "")
    words = [word for row in rows for word in row.words]
    if taken or not words:
        return taken or "other"
    return f"{'list' if rows[0].is_list else 'words'} {' '.join(words)}"
