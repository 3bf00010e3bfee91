"""Keep in a file of the run directory in which lines of the script the ranks are: their last state in each attempt."""

from __future__ import annotations

import json
from typing import Any

from echelon.environment import regular_files
from echelon.launch.run_directory import RunDirectory
from echelon.node.channel import Message
from echelon.node.line_sampler import AFTER, BEFORE, STEPS

NAME = "lines.json"
FORMAT = 1
MOST_ATTEMPTS = 3  # the newest attempts whose lines are kept: all of them are written anew each time
_MOST_BYTES = 1 << 28


class LineTimes:
    """What agents tell of their ranks' lines; each place stands once for an attempt."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._attempts: dict[str, dict[str, Any]] | None = None
        self._numbers: dict[tuple[object, ...], int] = {}
        self._is_new = False

    def hear(self, attempt: int, told: Message) -> None:
        if self._attempts is None:
            self._attempts = _earlier(self._directory.file(NAME))
        kept = self._attempts.setdefault(str(attempt), {"places": [], "ranks": {}})
        for older in sorted(self._attempts, key=int)[:-MOST_ATTEMPTS]:
            del self._attempts[older]
        places = kept["places"]
        if len(self._numbers) != len(places):  # another attempt, or that of a supervisor before this one
            self._numbers = {tuple(place): number for number, place in enumerate(places)}
        numbers = []
        for place in map(tuple, told["places"]):
            if place not in self._numbers:
                self._numbers[place] = len(places)
                places.append(list(place))
            numbers.append(self._numbers[place])
        for rank, phases in told["ranks"].items():
            rows = {phase: [[numbers[row[0]], *row[1:]] for row in phases[phase]] for phase in (BEFORE, STEPS, AFTER)}
            kept["ranks"][rank] = {"now": numbers[phases["now"]], "core_wait": phases["core_wait"], **rows}
        self._is_new = True

    @property
    def known(self) -> dict[str, Any]:
        """What the file has, and what came since it was written."""
        return {"attempts": self._attempts or {}}

    def write(self) -> None:
        """Write the file anew if there is news."""
        if self._is_new:
            self._is_new = False
            content = json.dumps({"format": FORMAT, **self.known}, separators=(",", ":"))
            self._directory.replace_text(NAME, content + "\n")


def _earlier(path: str) -> dict[str, dict[str, Any]]:
    """Return the attempts that a supervisor before this one has written."""
    try:
        attempts = json.loads(regular_files.read(path, most_bytes=_MOST_BYTES))["attempts"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return attempts if isinstance(attempts, dict) else {}
