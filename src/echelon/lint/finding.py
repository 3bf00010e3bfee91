"""The nouns of the linter: edits, hits, rules, findings; hits in a job's script; and the lines of a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from echelon.lint.command import SimpleCommand, Word

if TYPE_CHECKING:
    from echelon.lint.batch import BatchOption


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


def hit(
    place: Word | BatchOption, message: str, repair: str = "", *, becomes: str = "", edits: tuple[Edit, ...] = ()
) -> Hit:
    """Return a hit at a word or an option; `--fix` replaces it with `becomes`."""
    if isinstance(place, Word) and place.caller is not None:
        width = max(1, len(written(place.caller).partition("\n")[0]))
        message = f"{message} ({place.where})"
        return Hit(line=place.line, column=place.column, width=width, message=message, repair=repair)
    width = max(1, len(written(place).partition("\n")[0]))
    if becomes and becomes != written(place):
        edits = (Edit(line=place.line, column=place.column, old=written(place), new=becomes),)
    return Hit(line=place.line, column=place.column, width=width, message=message, repair=repair, edits=edits)


def judged(mistake: Hit, *, is_certain: bool) -> Hit:
    """Return a hit as a warning, if it is not certain that the job fails."""
    return mistake if is_certain else replace(mistake, severity="warning")


def written(place: Word | BatchOption) -> str:
    return place.raw if isinstance(place, Word) else place.written


def line_before(lines: Sequence[str], command: SimpleCommand, text: str) -> tuple[Edit, ...]:
    """Return the edit that inserts a line before a command; none if the command does not begin a line."""
    first = command.words[0]
    before, number = lines[first.line - 1][: first.column - 1], first.line
    while number > 1 and re.match(r"\s*#(?!!|[A-Z]{4,} )", lines[number - 2]):
        number -= 1  # the comment belongs to the command
    previous = lines[number - 2].rstrip() if number > 1 else ""
    if command.outer is not None or first.caller is not None or before.strip() or previous.endswith(("\\", "|", "&&")):
        return ()
    return (Edit(line=number, column=1, old="", new=f"{before}{text}\n"),)
