"""Split a file into lines as a shell and Python count them, and count things in a message."""

from __future__ import annotations

import re


def lines_of(text: str) -> list[str]:
    """Return the lines without their ends; a form feed ends none, as it would in `str.splitlines`.

    >>> lines_of("a\\x0cb\\r\\nc\\n")
    ['a\\x0cb', 'c']
    """
    lines = re.split(r"\r?\n", text)
    return lines if lines[-1] else lines[:-1]


def counted(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "process"), counted(2, "process"), counted(3, "node")
    ('1 process', '2 processes', '3 nodes')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"
