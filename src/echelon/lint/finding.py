"""What a rule finds, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One piece of a file that becomes another."""

    line: int
    column: int
    old: str
    """What stands there now; where it does not, nothing is changed. Empty: the new text is put in front."""
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One place where a rule is broken, in the file that the rule was given."""

    line: int
    column: int = 1
    width: int = 1
    """Characters that are marked below the source line."""
    message: str
    """What is wrong, with the two values that disagree."""
    repair: str = ""
    """Something to paste."""
    edits: tuple[Edit, ...] = ()
    """The repair as `--fix` makes it; empty where it takes a person to decide."""
    severity: str = ""
    """Where it is not that of the rule's page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule: its code, by which its page is found, and the function that looks."""

    code: str
    find: Callable[[Any], Iterator[Hit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A hit with everything that a report says of it."""

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
