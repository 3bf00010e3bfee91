"""The program at the end of a launcher's command line: a Python script, a module, or any program."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence

from echelon.errors import UsageError
from echelon.launch.launchers.line import Given
from echelon.spec import Command

HARMLESS = ("-u",)  # output of ranks is line buffered in any case


def script_or_program(launcher: str, rest: Sequence[str], *, module: bool, no_python: bool, example: str) -> Command:
    """Return the command after a launcher that starts Python by itself."""
    if not rest:
        raise UsageError(f"{launcher} needs a script", hint=example)
    if module and no_python:
        raise UsageError(f"{launcher}: --module names a module, --no_python any program", hint="remove one of them")
    kind = "module" if module else "program" if no_python else "script"
    return Command(kind=kind, target=rest[0], arguments=tuple(rest[1:]))


def command(launcher: str, rest: Sequence[str], *, example: str) -> Command:
    """Return the command after a launcher of any program; `python train.py` is a script if that Python is our own."""
    if not rest:
        raise UsageError(f"{launcher} needs a program", hint=example)
    words = list(rest)
    if is_our_python(words[0]):
        at = 1
        while at < len(words) and words[at] in HARMLESS:
            at += 1
        if words[at : at + 1] == ["-m"] and at + 1 < len(words):
            return Command(kind="module", target=words[at + 1], arguments=tuple(words[at + 2 :]))
        if at < len(words) and not words[at].startswith("-"):
            return Command(kind="script", target=words[at], arguments=tuple(words[at + 1 :]))
    return Command(kind="program", target=words[0], arguments=tuple(words[1:]))


def is_our_python(word: str) -> bool:
    """Say whether a word starts the Python that runs echelon: then echelon can start the script itself."""
    if not re.fullmatch(r"(?:.*/)?python(?:3(?:\.\d+)?)?", word):
        return False
    path = shutil.which(word)
    return path is not None and os.path.dirname(os.path.abspath(path)) == os.path.dirname(
        os.path.abspath(sys.executable)
    )


def renamed(options: Sequence[Given], keys: dict[str, str]) -> tuple[Given, ...]:
    """Return the options that `echelon run` has too, under its names."""
    return tuple(
        Given(key=keys[option.key], value=option.value, text=option.text) for option in options if option.key in keys
    )


def without_meaning(options: Sequence[Given], reasons: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the options without an effect here, each once, with its reason."""
    by_name = {
        option.text.partition(" ")[0].partition("=")[0]: reasons[option.key]
        for option in options
        if option.key in reasons
    }
    return tuple(by_name.items())
