"""What commands say to the person, beside their data."""

from __future__ import annotations

import os
import re
import sys

from echelon.errors import EchelonError
from echelon.host import terminal

MOST_SIGNS = 2000
"""Of a message, however long the values are that it shows."""
_LONG_WORD = re.compile(r"""[^\s:,;'"]{301,}""")


def one_line(text: str) -> str:
    """Return a text without line ends, codes for terminals and endless words."""
    shown = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)
    shown = _LONG_WORD.sub(_shortened, shown)
    return shown if len(shown) <= MOST_SIGNS else f"{shown[:MOST_SIGNS]} …"


def _shortened(word: re.Match[str]) -> str:
    text = word.group()
    return f"{text[:40]}…{text[-20:]} ({len(text)} characters)"


def say(text: str) -> None:
    """Talk to the person: on standard error."""
    print(terminal.for_person(f"echelon: {text}", sys.stderr), file=sys.stderr)


def say_error(error: EchelonError) -> None:
    """Say what is wrong, and how to repair it: the repair is not wrapped, so that it can be pasted."""
    with_colour = terminal.has_colour(sys.stderr, os.environ)
    text = terminal.for_person(f"echelon: error: {one_line(error.message)}", sys.stderr)
    head = terminal.paint("error:", "error", with_colour=with_colour)
    print(text.replace("echelon: error:", f"echelon: {head}", 1), file=sys.stderr)
    if error.details:
        print(error.details.rstrip("\n"), file=sys.stderr)
    if error.hint:
        print(f"  {terminal.paint('hint:', 'hint', with_colour=with_colour)} {one_line(error.hint)}", file=sys.stderr)


def print_help(text: str) -> None:
    """Print a help, no wider than the terminal."""
    print(terminal.wrapped(text, width=terminal.columns() - 1), end="")


def print_table(text: str) -> None:
    """Print data for a person: on a terminal no wider than that, elsewhere line by line as it is."""
    print(terminal.for_person(text, sys.stdout), end="" if text.endswith("\n") else "\n")
