"""Read what was appended to a file of lines since the last look; a line that is being written comes later."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from echelon.environment import regular_files

MOST_BYTES = 1 << 26
"""The most that one look reads; the rest comes with the next look."""


LONG_BYTES = 1 << 13
_MEASURES = re.compile(rb', "measures": \{[^{}]*\}')  # numbers and lists of them: no other braces within


class Tail:
    """The objects of a growing file."""

    def __init__(self, path: str, num_whole: int | None = None) -> None:
        """Of a look's long lines, the newest `num_whole` are read whole, and older ones without the ranks' measures."""
        self._path = path
        self._num_whole = num_whole
        self._position = 0
        self._file = -1

    def look(self) -> list[dict[str, Any]]:
        """Return the objects of new lines; a broken line is left out. A file that was replaced is read anew."""
        try:
            with regular_files.opened(self._path) as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._file or status.st_size < self._position:
                    self._file, self._position = status.st_ino, 0
                file.seek(self._position)
                data = file.read(MOST_BYTES)
        except OSError:
            return []  # there is none yet
        whole = data.rfind(b"\n") + 1
        self._position += whole
        return [value for line in self._shortened(data[:whole].splitlines()) if (value := _object(line))]

    def _shortened(self, lines: list[bytes]) -> list[bytes]:
        """Leave out what nobody looks at: a day of a thousand ranks has 30 MB of it."""
        if self._num_whole is None:
            return lines
        long = [place for place, line in enumerate(lines) if len(line) > LONG_BYTES][: -self._num_whole]
        for place in long:
            lines[place] = _MEASURES.sub(b"", lines[place])
        return lines


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) and isinstance(value.get("time"), (int, float)) else {}
