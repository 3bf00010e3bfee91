"""What an agent tells of the lines in which its ranks are: rows of their pages, with the calls that the lines name."""

import ast
import linecache
from typing import Any, Dict, Iterable, List, Tuple

from . import line_sampler
from .line_sampler import StackPlace, Times
from .ranks import Rank

MOST_TOLD = {line_sampler.BEFORE: 6, line_sampler.STEPS: 12, line_sampler.AFTER: 6}
"""The rows of a rank in each phase; all others are told as one."""
_MOST_CHARACTERS = 40
Key = Tuple[str, str, int]  # the part of a step, the file and the line


class ScriptLines:
    """Reads the pages of ranks; the calls of each place are found once in the source."""

    def __init__(self) -> None:
        self._calls: Dict[StackPlace, str] = {}

    def of(self, ranks: Iterable[Rank]) -> Dict[str, Any]:
        """Return the places, and for each rank in which of them it is and was, with seconds and seconds on a core."""
        places: Dict[Tuple[str, str, int, str], int] = {}
        told = {}
        for rank in ranks:
            rows = rank.pulse.lines() if rank.pulse is not None else None
            if rows:
                waited = round(rank.waits.get("core_wait_seconds", 0.0), 3)
                told[str(rank.rank)] = {"core_wait": waited, **self._of_rank(rows, places)}
        return {"places": list(places), "ranks": told}

    def _of_rank(
        self, rows: List[Tuple[str, StackPlace, Times]], places: Dict[Tuple[str, str, int, str], int]
    ) -> Dict[str, Any]:
        def number(key: Key, call: str) -> int:
            return places.setdefault((*key, call), len(places))

        now = rows[0][1]
        told: Dict[str, Any] = {"now": number(now[:3], self._call(now))}
        for phase, most in MOST_TOLD.items():
            lines = self._merged((place, times) for name, place, times in rows if name == phase)
            ordered = sorted(lines.items(), key=lambda line: (not line[0][1], -line[1][1][0]))
            first, rest = ordered[:most], [times for _, (_, times) in ordered[most:]]
            if rest:
                first.append((line_sampler.OTHERS[:3], ("", [sum(column) for column in zip(*rest)])))  # noqa: B905
            told[phase] = [
                [number(key, call), round(times[0], 3), round(times[1], 3), int(times[2])]
                for key, (call, times) in first
            ]
        return told

    def _merged(self, rows: Iterable[Tuple[StackPlace, Times]]) -> Dict[Key, Tuple[str, Times]]:
        """Add up the rows of each line and part; of several calls, the one with the most time names the line."""
        lines: Dict[Key, Tuple[str, Times]] = {}
        for place, times in sorted(rows, key=lambda row: -row[1][0]):
            call, sums = lines.get(place[:3], (self._call(place), [0.0] * len(times)))
            lines[place[:3]] = call, [whole + more for whole, more in zip(sums, times)]  # noqa: B905
        return lines

    def _call(self, place: StackPlace) -> str:
        if place not in self._calls:
            self._calls[place] = call_in(linecache.getlines(place.file), place) if place.file else ""
        return self._calls[place]


def call_in(source: List[str], place: StackPlace) -> str:
    """Return the function that is called at a place of a source, or else the short text of an expression.

    >>> call_in(["x = model(time.sleep(0.1))"], StackPlace("", "train.py", 1, (1, 10, 25)))
    'time.sleep'
    >>> call_in(["os.fsync(file)"], StackPlace("", "train.py", 1, (0, 0, 0)))
    'os.fsync'
    """
    end, first, last = place.span
    lines = [line.rstrip("\n").encode() for line in source[place.line - 1 : max(end, place.line)]]
    if not lines:
        return ""
    if end:
        lines[-1] = lines[-1][:last]
        lines[0] = lines[0][first:]
    text = b"\n".join(lines).decode("utf-8", "replace").strip()
    try:
        tree = ast.parse("(%s\n)" % text, mode="eval").body
        tree = tree.func if isinstance(tree, ast.Call) else tree
        called = ast.unparse(tree)
    except (SyntaxError, ValueError):
        return text if end and len(text) <= _MOST_CHARACTERS and "\n" not in text else ""
    except (RecursionError, MemoryError):
        return ""
    if len(called) > _MOST_CHARACTERS:
        return "….%s" % tree.attr if isinstance(tree, ast.Attribute) else ""
    return called
