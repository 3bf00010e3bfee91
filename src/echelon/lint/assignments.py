"""The assignments of a script's variables, and which programs see them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from echelon.lint.command import ASSIGNMENT, Command, Word

EXPORTS = frozenset({"export", "declare", "typeset"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An assignment of a variable."""

    name: str
    value: str
    word: Word
    command: Command
    is_exported: bool

    @property
    def live(self) -> str:
        """The value, with spaces for all that the shell of this command does not expand."""
        return self.word.live[len(self.word.text) - len(self.value) :]


def assignments(commands: list[Command]) -> Iterator[Variable]:
    """Yield every assignment, in the order of the script."""
    exports_all = any(
        command.program == "set" and any(word.text in ("-a", "allexport") for word in command.argv)
        for command in commands
    )
    for command in commands:
        for word in command.assignments:
            yield from _assigned(word, command, is_exported=exports_all or bool(command.argv))
        if command.program in (*EXPORTS, "local", "readonly"):
            is_export = command.program in EXPORTS
            is_exported = command.program == "export" or any(
                "x" in word.text for word in command.argv[1:2] if is_export
            )
            for word in command.argv[1:]:
                yield from _assigned(word, command, is_exported=is_exported or exports_all)
        elif command.program == "env":
            for word in command.argv[1:]:
                yield from _assigned(word, command, is_exported=True)
        for word in command.argv:
            if word.text.startswith("--export="):
                yield from _of_option(word, command)


def _of_option(word: Word, command: Command) -> Iterator[Variable]:
    for part in re.findall(r"(\w+=[^,]*)", word.text.removeprefix("--export=")):
        name, _, value = part.partition("=")
        yield Variable(name=name, value=value, word=word, command=command, is_exported=True)


def _assigned(word: Word, command: Command, *, is_exported: bool) -> Iterator[Variable]:
    assignment = ASSIGNMENT.match(word.text)
    if assignment:
        value = word.text[assignment.end() :]
        yield Variable(name=assignment[1], value=value, word=word, command=command, is_exported=is_exported)
