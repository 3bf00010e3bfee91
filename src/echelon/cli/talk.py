"""What commands say to the person, beside their data."""

from __future__ import annotations

import os
import re
import sys

from echelon.errors import EchelonError
from echelon.host import terminal

MOST_SIGNS = 2000
"""Of a message, however long the values are that it shows."""
LONGEST_WORD, LONGEST_PATH = 300, 4096
"""A longer value is shortened; a repair is pasted, so that its paths stay whole."""


def one_line(text: str, *, longest: int = LONGEST_WORD) -> str:
    """Return a text without line ends, codes for terminals and endless words."""
    shown = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
    shown = re.sub(rf"""[^\s:,;'"]{{{longest + 1},}}""", _shortened, shown)
    most = max(MOST_SIGNS, longest + MOST_SIGNS // 2)
    return shown if len(shown) <= most else f"{shown[:most]} …"


def _shortened(word: re.Match[str]) -> str:
    text = word.group()
    return f"{text[:40]}…{text[-20:]} ({len(text)} characters)"


def say(text: str) -> None:
    """Talk to the person: on standard error."""
    print(terminal.for_person(f"echelon: {one_line(text)}", sys.stderr), file=sys.stderr)


def say_error(error: EchelonError) -> None:
    """Say what is wrong, and how to repair it: the repair is not wrapped, so that it can be pasted."""
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
    """Return lines of facts, which break between words; an excerpt with a caret below it stays as it is."""
    # one sign for one, so that a caret stays below its column
    shown = "".join(sign if sign.isprintable() or sign in "\n\t" else "�" for sign in details.rstrip("\n"))
    if re.search(r"^\s*\^+\s*$", shown, re.MULTILINE):
        return shown
    return "\n".join(terminal.for_person(line, sys.stderr) for line in shown.split("\n"))


def print_help(text: str) -> None:
    """Print a help, no wider than the terminal."""
    print(terminal.wrapped(text, width=terminal.columns() - 1), end="")


def print_table(text: str) -> None:
    """Print data for a person: on a terminal no wider than that, elsewhere line by line as it is."""
    print(terminal.for_person(text, sys.stdout), end="" if text.endswith("\n") else "\n")
