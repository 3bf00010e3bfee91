"""The parts of a shell script: words, commands, the blocks around them, here-documents."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?\+?=")
SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
GIVEN = ("-c", "-lc", "-ec", "-xc", "-cl", "-exc", "-euc", "-ic")
"""The options of a shell after which a script stands as a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word of a command."""

    raw: str
    """As it is written."""
    text: str
    """Without quotes; expansions stand as they are written."""
    live: str
    """The parts in which this shell expands variables: nothing of single quotes, nothing that is escaped."""
    line: int
    column: int
    caller: Word | None = None
    """The word that calls another script, of a word that stands there: line and column are the caller's."""
    where: str = ""
    """The name and line of that other script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One part of the script that begins and ends: a branch, a loop, a function."""

    kind: str
    """if, loop, case, group, subshell or function."""
    number: int
    """Which of the script's blocks; all branches of one `if` have the same number."""
    branch: int = 0
    name: str = ""
    """The name of a function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirection:
    """One redirection of a command: > log.txt, <<EOF."""

    operator: str
    target: Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One simple command."""

    words: tuple[Word, ...]
    keyword: str
    """The word of the grammar before it: "if", "then"."""
    outer: Command | None
    """The command whose bash -c holds this one."""
    ending: str = ""
    """What ends it: a line, ;, &, |, && or ||."""
    blocks: tuple[Block, ...] = ()
    """The blocks around it, the outermost first."""
    redirections: tuple[Redirection, ...] = ()
    source: Command | None = None
    """The command as it is written, where variables in it were filled in."""

    @property
    def assignments(self) -> tuple[Word, ...]:
        """The NAME=value words at the front."""
        return self.words[: self._first]

    @property
    def argv(self) -> tuple[Word, ...]:
        """The program and its arguments."""
        return self.words[self._first :]

    @property
    def program(self) -> str:
        """The program's name without its folder; empty for assignments alone."""
        return self.argv[0].text.rpartition("/")[2] if self.argv else ""

    @property
    def _first(self) -> int:
        return next((i for i, word in enumerate(self.words) if not ASSIGNMENT.match(word.raw)), len(self.words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A here-document."""

    text: str
    line: int
    """The line of its first line."""
    is_quoted: bool
    """Whether the shell leaves its variables alone."""
    mark: Word
    """The word that names its end, at the redirection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that the shell would not read."""

    what: str
    line: int
    column: int


@dataclass(slots=True, kw_only=True)
class Script:
    """A script taken apart."""

    commands: list[Command] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
