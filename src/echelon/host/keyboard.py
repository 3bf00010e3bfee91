"""Keys of a terminal, one at a time, without Enter; and the terminal as it was afterwards."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType

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
