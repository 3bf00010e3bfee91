"""Split a file into lines as a shell and Python count them."""

from __future__ import annotations

import re


def lines_of(text: str) -> list[str]:
    """Return the lines without their ends; a form feed ends none, as it would in `str.splitlines`.

    >>> lines_of("a\\x0cb\\r\\nc\\n")
    ['a\\x0cb', 'c']
    """
    lines = re.split(r"\r?\n", text)
    return lines if lines[-1] else lines[:-1]
