"""Print messages for the person, apart from a command's data."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from echelon.errors import EchelonError
from echelon.host import terminal

if TYPE_CHECKING:
    from echelon.spec import Booking

MOST_SIGNS = 2000  # the longest message, however long its values are
LONGEST_WORD, LONGEST_PATH = 300, 4096
"""Longer words are shortened; a repair is pasted, so its paths stay whole up to the second number."""


def one_line(text: str, *, longest: int = LONGEST_WORD) -> str:
    """Return a text as one line without terminal codes; shorten very long words."""
    shown = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
    shown = re.sub(rf"""[^\s:,;'"]{{{longest + 1},}}""", _shortened, shown)
    most = max(MOST_SIGNS, longest + MOST_SIGNS // 2)
    return shown if len(shown) <= most else f"{shown[:most]} …"


def _shortened(word: re.Match[str]) -> str:
    text = word.group()
    return f"{text[:40]}…{text[-20:]} ({len(text)} characters)"


def say(text: str) -> None:
    print(terminal.for_person(f"echelon: {one_line(text)}", sys.stderr), file=sys.stderr)


def say_remarks(booking: Booking) -> None:
    for text in booking.warnings:
        say(f"warning: {text}")
    for text in booking.notes:
        say(f"note: {text}")


def say_error(error: EchelonError) -> None:
    """Print an error with its repair; the repair is not wrapped, so that it can be pasted."""
    with_colour = terminal.has_colour(sys.stderr, os.environ)
    text = terminal.for_person(f"echelon: error: {one_line(error.message)}", sys.stderr)
    head = terminal.paint("error:", "error", with_colour=with_colour)
    print(text.replace("echelon: error:", f"echelon: {head}", 1), file=sys.stderr)
    if error.details:
        print(_shown_details(error.details), file=sys.stderr)
    if error.hint:
        head = terminal.paint("hint:", "hint", with_colour=with_colour)
        print(f"  {head} {one_line(error.hint, longest=LONGEST_PATH)}", file=sys.stderr)


def _shown_details(details: str) -> str:
    """Wrap lines of facts between words; leave an excerpt with a caret line unwrapped."""
    # each character becomes one character, so that a caret stays in its column
    shown = "".join(sign if sign.isprintable() or sign in "\n\t" else "�" for sign in details.rstrip("\n"))
    if re.search(r"^\s*\^+\s*$", shown, re.MULTILINE):
        return shown
    return "\n".join(terminal.for_person(line, sys.stderr) for line in shown.split("\n"))


def print_help(text: str) -> None:
    print(terminal.wrapped(text, width=terminal.columns() - 1), end="")


def print_json(**fields: Any) -> None:
    """Print a command's data for programs; the format has a number."""
    print(json.dumps({"format": 1, **fields}, indent=1))


def print_table(text: str) -> None:
    """Print a table: on a terminal wrapped to its width, elsewhere line by line."""
    print(terminal.for_person(text, sys.stdout), end="" if text.endswith("\n") else "\n")
