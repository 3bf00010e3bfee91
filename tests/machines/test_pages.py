"""The table of keys on the page is that of the schema; `python -m tests.machines.test_pages` writes it."""

import dataclasses
import re
from datetime import date
from pathlib import Path
from typing import Any, get_args

from echelon.cli import machines as command
from echelon.machines import schema
from echelon.machines.machine import Machine, SourcedFact

PAGE = Path(__file__).parents[2] / "docs" / "machines.md"
BEGIN, END = "<!-- keys: written by python -m tests.machines.test_pages -->\n", "<!-- end of keys -->\n"


def tables(cls: type[SourcedFact] = Machine, header: str = "") -> list[tuple[str, type[SourcedFact]]]:
    found = [(header, cls)]
    for key, (_, kind) in schema.keys(cls).items():
        if inner := schema.row_class(kind):
            found += tables(inner, f"{header}.{key}" if header else key)
    return found


def kind_of(cls: type[SourcedFact], field: str, kind: Any) -> str:
    if choices := schema.CHOICES.get((cls, field)):
        return " or ".join(f"`{choice}`" for choice in choices)
    if kind == tuple[int, ...]:
        return "cores"
    if kind == tuple[str, ...]:
        return "list of texts"
    plain = next((part for part in get_args(kind) if part is not type(None)), kind)
    return {str: "text", int: "whole number", float: "number", bool: "true or false", date: "date"}[plain]


def keys_of(cls: type[SourcedFact]) -> str:
    needed = {field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING}
    words = []
    for key, (field, kind) in schema.keys(cls).items():
        if not schema.row_class(kind) and field not in ("note", "source", "seen"):
            words.append((f"**`{key}`**" if field in needed else f"`{key}`") + f" ({kind_of(cls, field, kind)})")
    return ", ".join(words)


def written() -> str:
    lines = ["| table | keys, beside `note`, **`source`** and **`date`** |", "|---|---|"]
    lines += [f"| {f'`[[{header}]]`' if header else 'at the top'} | {keys_of(cls)} |" for header, cls in tables()]
    return "\n" + "\n".join(lines) + "\n\n"


def test_keys_of_the_page_are_those_of_the_schema() -> None:
    """Every table and key that a file may have is on the page, and none that it may not have."""
    text = PAGE.read_text("utf-8")
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == written()


def test_options_of_learn_are_on_the_page() -> None:
    """Every option of learn is explained."""
    text = PAGE.read_text("utf-8")
    for option in ("--json", *(name for row in command.OF_LEARN for name in row.names)):
        assert re.search(rf"`{option}[ `]", text), option


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    PAGE.write_text(text[: text.index(BEGIN) + len(BEGIN)] + written() + text[text.index(END) :], "utf-8")
