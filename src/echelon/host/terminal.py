"""The width of the terminal, and its colours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import IO

MOST_COLUMNS = 120  # the widest line of a help text, on any terminal: longer lines are hard to read
FEWEST_COLUMNS = 20  # the narrowest line: shorter ones hold no word
COMMAND = re.compile(r"\s*(?:\$ |usage: )?echelon [a-z]|\s*hint: ")
CODES = {"error": "31;1", "warning": "33;1", "hint": "36", "bold": "1"}


def is_terminal(stream: IO[str] | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def moves_cursor(stream: IO[str] | None, environ: Mapping[str, str]) -> bool:
    """Say whether a stream is a terminal that can erase its output."""
    return is_terminal(stream) and environ.get("TERM") != "dumb"


def has_colour(stream: IO[str] | None, environ: Mapping[str, str]) -> bool:
    """Say whether a stream shows colours and the user wants them: https://no-color.org."""
    return moves_cursor(stream, environ) and not environ.get("NO_COLOR")


def paint(text: str, role: str, *, with_colour: bool) -> str:
    return f"\033[{CODES[role]}m{text}\033[0m" if with_colour else text


def columns() -> int:
    """Return the width of a line; 80 if no terminal gives it."""
    import shutil

    return max(FEWEST_COLUMNS, min(shutil.get_terminal_size((80, 24)).columns, MOST_COLUMNS))


def wrapped(text: str, *, width: int, indent: str = "") -> str:
    """Wrap lines only between words, so that a path stays whole.

    Continuation lines are indented, or stand below the last column of a table. A command to paste is not wrapped.
    """
    lines = []
    for line in text.split("\n"):
        if len(line) <= width or COMMAND.match(line):
            lines.append(line)
            continue
        import textwrap  # a run without long lines does not pay these 2 ms

        left = " " * _last_column(line, width) or line[: len(line) - len(line.lstrip())] + indent
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=left,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [line]
    return "\n".join(lines)


def _last_column(line: str, width: int) -> int:
    """Return the start of a table line's last column if words fit below it; 0 if the line is not part of a table."""
    gaps = [gap.end() for gap in re.finditer(r"(?<=\S)  +(?=\S)", line)]
    return gaps[-1] if gaps and gaps[-1] <= width // 2 + 8 else 0


def for_person(text: str, stream: IO[str] | None, *, indent: str = "  ") -> str:
    """Wrap a text for a terminal; return it unchanged for a file or another program."""
    if stream is None or not is_terminal(stream):
        return text
    return wrapped(text, width=max(columns() - 1, 20), indent=indent)
