"""Build hits in a job's script: at a word or an option, and edits of the line above."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from echelon.lint.batch import Option
from echelon.lint.command import Command, Word
from echelon.lint.finding import Edit, Hit

if TYPE_CHECKING:
    from echelon.lint.job import Job


def hit(
    place: Word | Option, message: str, repair: str = "", *, becomes: str = "", edits: tuple[Edit, ...] = ()
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


def written(place: Word | Option) -> str:
    return place.raw if isinstance(place, Word) else place.written


def line_before(job: Job, command: Command, text: str) -> tuple[Edit, ...]:
    """Return the edit that inserts a line before a command; none if the command does not begin a line."""
    first = command.words[0]
    before, number = job.lines[first.line - 1][: first.column - 1], first.line
    while number > 1 and re.match(r"\s*#(?!!|[A-Z]{4,} )", job.lines[number - 2]):
        number -= 1  # the comment belongs to the command
    previous = job.lines[number - 2].rstrip() if number > 1 else ""
    if command.outer is not None or first.caller is not None or before.strip() or previous.endswith(("\\", "|", "&&")):
        return ()
    return (Edit(line=number, column=1, old="", new=f"{before}{text}\n"),)
