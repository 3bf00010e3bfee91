"""The nouns of the linter: edits, hits, rules, findings."""

from __future__ import annotations

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
