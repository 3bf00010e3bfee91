"""The place of a value in a machine file, for messages."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.\-]+)\s*\]")  # [[node_type.nearest]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A table of a file."""

    path: str
    text: str
    tables: tuple[tuple[str, int], ...] = ()
    """The names of the nested tables, outermost first, each with its index among equal names."""
    label: str = ""
    """The row's own name."""

    def inside(self, table: str, index: int, label: str) -> Where:
        """Return the place of a row in a nested table."""
        return Where(path=self.path, text=self.text, tables=(*self.tables, (table, index)), label=label)

    def say(self, key: str = "") -> str:
        """Describe file, line and table, and the key if one is given."""
        line = self._line(key)
        parts = [f"{self.path}, line {line}" if line else self.path]
        if self.tables:
            parts.append(f"[[{self._header}]]" + (f' "{self.label}"' if self.label else ""))
        return ": ".join(parts)

    @property
    def _header(self) -> str:
        return ".".join(table for table, _ in self.tables)

    def _line(self, key: str) -> int:
        """Return the line of a key, or else of its table's header; 0 if unknown."""
        at: tuple[tuple[str, int], ...] = ()
        header_line = 0 if self.tables else 1
        for number, line in enumerate(self.text.splitlines(), 1):
            if match := _HEADER.match(line):
                at = _enter(at, match.group(2))
                header_line = number if at == self.tables else header_line
            elif at == self.tables and key and re.match(rf'\s*"?{re.escape(key)}"?\s*=', line):
                return number
        return header_line


def _enter(at: tuple[tuple[str, int], ...], header: str) -> tuple[tuple[str, int], ...]:
    """Return the place of a header, counted from the place of the header before."""
    names = header.split(".")
    shared = 0
    while shared < min(len(names) - 1, len(at)) and at[shared][0] == names[shared]:
        shared += 1
    place = at[:shared]
    for name in names[shared:]:
        level = len(place)
        before = at[level] if level < len(at) and at[:level] == place else None
        place = (*place, (name, before[1] + 1 if before and before[0] == name else 0))
    return place
