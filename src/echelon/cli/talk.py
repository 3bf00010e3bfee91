"""What commands say to the person, beside their data."""

from __future__ import annotations

import os
import sys

from echelon.errors import EchelonError
from echelon.host import terminal


def say(text: str) -> None:
    """Talk to the person: on standard error."""
    print(terminal.for_person(f"echelon: {text}", sys.stderr), file=sys.stderr)


def say_error(error: EchelonError) -> None:
    """Say what is wrong, and how to repair it: the repair is not wrapped, so that it can be pasted."""
    with_colour = terminal.has_colour(sys.stderr, os.environ)
    text = terminal.for_person(f"echelon: error: {error.message}", sys.stderr)
    head = terminal.paint("error:", "error", with_colour=with_colour)
    print(text.replace("echelon: error:", f"echelon: {head}", 1), file=sys.stderr)
    if error.hint:
        print(f"  {terminal.paint('hint:', 'hint', with_colour=with_colour)} {error.hint}", file=sys.stderr)


def print_help(text: str) -> None:
    """Print a help, no wider than the terminal."""
    print(terminal.wrapped(text, width=terminal.columns() - 1), end="")


def print_table(text: str) -> None:
    """Print data for a person: on a terminal no wider than that, elsewhere line by line as it is."""
    print(terminal.for_person(text, sys.stdout), end="" if text.endswith("\n") else "\n")
