"""The width, the colours and the keys of a terminal."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Mapping
from types import TracebackType
from typing import IO

MOST_COLUMNS = 120
"""The widest line of a help text, on any terminal: longer lines are hard to read."""
FEWEST_COLUMNS = 20
"""The narrowest line: shorter ones hold no word."""
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


_SEQUENCES = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1bOC": "right", b"\x1bOD": "left",
    b"\r": "enter", b"\n": "enter", b"\x7f": "backspace", b"\b": "backspace", b"\x1b": "esc",
}  # fmt: skip
_SHOWN, _HIDDEN = "\033[?1049h\033[?25l", "\033[?25h\033[?1049l"  # another screen, without a cursor; and back


class Screen:
    """A terminal that shows a page of lines, and gives keys; use it in a `with` block."""

    def __init__(self) -> None:
        self._input, self._output = sys.stdin.fileno(), sys.stdout
        self._lines: list[str] = []
        self._size = (0, 0)

    def __enter__(self) -> Screen:
        self._before = termios.tcgetattr(self._input)
        tty.setcbreak(self._input)
        self._write(_SHOWN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        termios.tcsetattr(self._input, termios.TCSADRAIN, self._before)
        self._write(_HIDDEN)

    def show(self, lines: list[str]) -> int:
        """Write the lines that differ from those before; return the number of bytes."""
        columns, rows = os.get_terminal_size(self._output.fileno())
        size = (columns, rows)
        text = ""
        if size != self._size:
            self._size, self._lines, text = size, [], "\033[2J"
        for place, line in enumerate(lines):
            if place >= len(self._lines) or self._lines[place] != line:
                text += f"\033[{place + 1};1H{line}\033[K"
        if len(lines) < len(self._lines):
            text += f"\033[{len(lines) + 1};1H\033[J"
        self._lines = lines
        return self._write(text)

    def _write(self, text: str) -> int:
        self._output.write(text)
        self._output.flush()
        return len(text.encode())

    def key(self, seconds: float) -> str:
        """Return the next key: its character, or "up", "enter", "esc"…; empty if none comes in this time."""
        deadline = time.monotonic() + seconds
        while True:
            ready, _, _ = select.select([self._input], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return ""
            data = os.read(self._input, 16)
            if not data:
                return "q"  # the terminal is gone
            name = _SEQUENCES.get(data) or data.decode("utf-8", "replace")[:1]
            if name.isprintable():
                return name
