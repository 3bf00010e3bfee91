"""The nouns of the linter: edits, hits, rules, findings; and the lines of a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A replacement of a piece of a file."""

    line: int
    column: int
    old: str
    """The present text; if the file differs, nothing is changed. Empty: insert the new text."""
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A place where a file breaks a rule."""

    line: int
    column: int = 1
    width: int = 1
    """The number of characters that are marked below the source line."""
    message: str
    """What is wrong, with the two values that disagree."""
    repair: str = ""
    """A text to paste."""
    edits: tuple[Edit, ...] = ()
    """The repair that `--fix` makes; empty if a person has to decide."""
    severity: str = ""
    """Set only if it differs from the rule's page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule: its code, which also names its page, and the function that finds hits."""

    code: str
    find: Callable[[Any], Iterator[Hit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A hit with everything that a report shows."""

    code: str
    severity: str
    path: str
    line: int
    column: int
    width: int
    text: str
    """The source line."""
    message: str
    repair: str
    edits: tuple[Edit, ...]
    why: str
    source: str


def lines_of(text: str) -> list[str]:
    """Return the lines without their ends; a form feed ends none, as it would in `str.splitlines`.

    >>> lines_of("a\\x0cb\\r\\nc\\n")
    ['a\\x0cb', 'c']
    """
    lines = re.split(r"\r?\n", text)
    return lines if lines[-1] else lines[:-1]


def counted(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "process"), counted(2, "process"), counted(3, "node")
    ('1 process', '2 processes', '3 nodes')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"
