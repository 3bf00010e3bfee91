"""Make one mistake at a time in whole scripts, and see whether it is found, at its line and with its repair."""

import datetime
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lint.linting import texts

from echelon.lint.finding import Finding

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent
TABLE: dict[str, Any] = tomllib.loads((FOLDER / "seeds.toml").read_text("utf-8"))
CENTRES: dict[str, Any] = tomllib.loads((FOLDER / "centres.toml").read_text("utf-8"))
FILES: dict[str, dict[str, Any]] = {**TABLE["files"], **CENTRES["files"]}
BEFORE = datetime.date(2026, 7, 1)
"""When Puhti was still there."""


@dataclass(frozen=True)
class Seed:
    """One mistake in one script."""

    name: str
    row: dict[str, Any]

    @property
    def code(self) -> str:
        return str(self.row["code"])

    @property
    def sources(self) -> dict[str, str]:
        """The files with the mistake."""
        files = given(self.row["in"])
        if "every" in self.row:
            files[self.row["in"]] = files[self.row["in"]].replace(*self.row["every"])
        changes = [(self.row["in"], *self.row["change"])] if "change" in self.row else []
        for file, old, new in [*changes, *([self.row["also"]] if "also" in self.row else [])]:
            assert old in files[file], (self.name, old)
            files[file] = files[file].replace(old, new, 1)
        return files

    @property
    def place(self) -> tuple[str, int]:
        """Return the file and line where it is to be found."""
        before, after = given(self.row["in"]), self.sources
        if (text := self.row.get("at")) == "<1>":
            return self.row["in"], 1
        for file, changed in after.items():
            for number, line in enumerate(changed.split("\n"), 1):
                if (text in line) if text else (line != (before[file].split("\n") + [""] * number)[number - 1]):
                    return file, number
        raise AssertionError(f"{self.name}: nothing is changed, and no line has {text!r}")

    def found(self) -> list[Finding]:
        """Return what its rule finds."""
        today = self.row.get("today", BEFORE)
        linted = texts(self.sources, machine=FILES[self.row["in"]].get("machine", ""), today=today)
        return [finding for finding in linted.findings if finding.code == self.code]

    def is_found(self) -> bool:
        """Tell whether it is found at its line, with a repair, and the right one where the row says it."""
        return any(
            (each.path, each.line) == self.place and each.repair and self.row.get("repair", "") in each.repair
            for each in self.found()
        )


def given(name: str) -> dict[str, str]:
    """Return a file and those that belong to it, without a mistake."""
    files = [name, *FILES[name].get("with", ())]
    return {file: _text(file) for file in files}


def _text(name: str) -> str:
    if "text" in FILES.get(name, {}):
        return str(FILES[name]["text"]).removeprefix("\n")
    return (FOLDER / "seeds" / (f"{name}.txt" if name.endswith(".py") else name)).read_text()


def seeds() -> list[Seed]:
    """Return all seeds."""
    rows = enumerate([*TABLE["seeds"], *CENTRES.get("seeds", ())], 1)
    return [Seed(name=f"{number}-{row['code']}-{row['in']}", row=row) for number, row in rows]
