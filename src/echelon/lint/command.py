"""The parts of a shell script: words, commands, blocks, here-documents."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?\+?=")
SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
GIVEN = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*")
"""Match the option of a shell that takes a script as the next word: -c, -lc."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word of a command."""

    raw: str
    """As written."""
    text: str
    """Without quotes; expansions stay as written."""
    live: str
    """The text, with spaces for all that this shell does not expand: quoted, escaped, or expanded by an outer shell."""
    line: int
    column: int
    caller: Word | None = None
    """For a word of another script: the word that calls that script; line and column are the caller's."""
    where: str = ""
    """The name of the other script, and the line in it."""
    spent: frozenset[int] = frozenset()
    """The positions in `raw` of $ and ` that an outer shell has already expanded."""


def script_in(words: tuple[Word, ...]) -> int:
    """Return the index of the script in `bash -l -c '…'`, wherever it stands among the words; 0 for none."""
    for index, word in enumerate(words):
        if word.text.rpartition("/")[2] not in SHELLS:
            continue
        at = index + 1
        while at + 1 < len(words) and words[at].text.startswith(("-", "+")):
            if GIVEN.fullmatch(words[at].text):
                return at + 1
            at += 2 if words[at].text in ("-o", "+o", "-O", "--rcfile") else 1
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A part of the script with a beginning and an end: a branch, a loop, a function."""

    kind: str
    """if, loop, case, group, subshell or function."""
    number: int
    """The number of the block in its script; all branches of one `if` share a number."""
    branch: int = 0
    name: str = ""
    """The name, for a function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirection:
    """A redirection of a command: > log.txt, <<EOF."""

    operator: str
    target: Word


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleCommand:
    """A simple command."""

    words: tuple[Word, ...]
    keyword: str
    """The keyword before it: "if", "then"."""
    outer: SimpleCommand | None
    """The command whose `bash -c` contains this one."""
    ending: str = ""
    """Its terminator: a newline, ;, &, |, && or ||."""
    blocks: tuple[Block, ...] = ()
    """The blocks around it, outermost first."""
    redirections: tuple[Redirection, ...] = ()
    source: SimpleCommand | None = None
    """The original command, if variables in this one were replaced by their values."""

    @property
    def assignments(self) -> tuple[Word, ...]:
        """The NAME=value words at the front."""
        return self.words[: self._first]

    @property
    def argv(self) -> tuple[Word, ...]:
        return self.words[self._first :]

    @property
    def program(self) -> str:
        """The program's name without its folder; empty for a command of assignments alone."""
        return self.argv[0].text.rpartition("/")[2] if self.argv else ""

    @property
    def _first(self) -> int:
        return next((i for i, word in enumerate(self.words) if not ASSIGNMENT.match(word.raw)), len(self.words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A here-document."""

    text: str
    line: int
    """The number of its first line."""
    is_quoted: bool
    """Whether the shell leaves its variables unexpanded."""
    mark: Word
    """The delimiter word, at the redirection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntaxProblem:
    """A syntax error for the shell."""

    what: str
    line: int
    column: int


@dataclass(slots=True, kw_only=True)
class ParsedScript:
    """A parsed script."""

    commands: list[SimpleCommand] = field(default_factory=list)
    documents: list[Document] = field(default_factory=list)
    problems: list[SyntaxProblem] = field(default_factory=list)


OPENING = {"if": "if", "while": "loop", "until": "loop", "{": "group"}
LISTS = {"for": "loop", "select": "loop", "case": "case"}
CLOSING = {"fi": "if", "done": "loop", "esac": "case", "}": "group"}
MOST_DEEP = 100


class Blocks:
    """The open blocks at the reader's position."""

    def __init__(self) -> None:
        self.open: list[Block] = []
        self.count = 0
        self.defined = ""
        """The name of the function whose body comes next."""

    def keyword(self, word: str) -> None:
        """Open a block, or another branch of one, at a keyword."""
        if word in ("else", "elif"):
            at = next((i for i in range(len(self.open) - 1, -1, -1) if self.open[i].kind == "if"), None)
            if at is not None:
                self.open[at:] = [replace(self.open[at], branch=self.open[at].branch + 1)]
        elif word in OPENING:
            self._push(OPENING[word])

    def command(self, first: Word) -> None:
        """Open or close a block after a command that is a keyword."""
        if first.raw in LISTS:
            self._push(LISTS[first.raw])

    def close(self, word: str) -> None:
        kinds = {CLOSING[word], "function"} if word == "}" else {CLOSING.get(word, "")}
        at = next((i for i in range(len(self.open) - 1, -1, -1) if self.open[i].kind in kinds), None)
        if at is not None:
            del self.open[at:]

    def bracket(self) -> None:
        self._push("subshell")

    def unbracket(self) -> None:
        """Close a subshell; the bracket after a pattern of `case` closes none."""
        if self.open and self.open[-1].kind in ("subshell", "function"):
            self.open.pop()

    def _push(self, kind: str) -> None:
        self.count += 1
        if self.defined and kind in ("group", "subshell"):
            kind = "function"
        name, self.defined = (self.defined, "") if kind == "function" else ("", self.defined)
        if len(self.open) < MOST_DEEP:
            self.open.append(Block(kind=kind, number=self.count, name=name))
