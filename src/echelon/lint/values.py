"""Compute the values of a shell script's variables at each use, and which programs see them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from echelon.lint.command import ASSIGNMENT, Block, SimpleCommand, Word
from echelon.lint.shell import parse_at

EXPANSION = re.compile(r"\$(?:(\d|[A-Za-z_]\w*|[@*])|\{(\d|[A-Za-z_]\w*|[@*])(?:\[(@|\*|[0-9]{1,9})\])?\})")
OPAQUE = re.compile(r"\$\(|`|\$\{[^}]*[^\w}@*\[\]][^}]*\}|<\(|>\(")
"""Match expansions whose value is known only when the script runs."""
LONGEST = 4000  # the longest word that variables may produce; no launcher's command line is longer
SPLIT = "\0"  # a separator between array elements that become separate words


class Cell(NamedTuple):
    """A character of a word, with its place."""

    char: str
    line: int
    column: int
    is_quoted: bool
    is_live: bool
    home: Word
    is_spent: bool = False
    """Whether it is the $ or ` of an expansion that a shell makes before this word is passed on."""


Cells = list[Cell]


class Values:
    """The values of a script's variables at one point."""

    def __init__(self) -> None:
        self._known: dict[str, list[Cells]] = {}
        self._blocks: dict[str, tuple[Block, ...]] = {}
        self._times: dict[str, int] = {}
        self._made: dict[int, tuple[Word, Cells]] = {}

    def give(self, name: str, elements: list[Cells]) -> None:
        """Set a variable; @ and numbers are the arguments of a function or a script."""
        self._known[name] = elements
        self._blocks[name], self._times[name] = (), 1

    def forget(self, name: str) -> None:
        self._known.pop(name, None)

    def assign(self, word: Word, command: SimpleCommand) -> None:
        match = ASSIGNMENT.match(word.raw)
        if match is None:
            return
        name, rest = match[1], word.raw[match.end() :]
        if match[2] or (OPAQUE.search(word.live[match.end() :]) and not rest.startswith("(")):
            self.forget(name)
            return
        elements = self._elements(word, match.end(), command)
        is_append = match.group().endswith("+=")
        if is_append:
            old = self._known.get(name)
            if old is None:
                return
            is_array = rest.startswith("(") or len(old) != 1
            elements = [*old, *elements] if is_array else [[*old[0], *(elements[0] if elements else [])]]
        if sum(map(len, elements)) > LONGEST:
            self.forget(name)
            return
        conditions = tuple(block for block in command.blocks if block.kind in ("if", "case", "loop"))
        self._known[name] = elements
        if not is_append:
            self._times[name] = self._times.get(name, 0) + 1 if conditions else 1
            self._blocks[name] = conditions

    def _elements(self, word: Word, start: int, command: SimpleCommand) -> list[Cells]:
        rest = word.raw[start:]
        if not rest.startswith("("):
            return [self.cells(word, command, start=start)]
        line, column = _place(word, start + 1)
        elements: list[Cells] = []
        for inner in parse_at(rest[1:-1], line, column).commands:
            for element in inner.words:
                own = Word(
                    raw=element.raw, text=element.text, live=element.live, line=element.line, column=element.column,
                    caller=word.caller, where=word.where,
                )  # fmt: skip
                elements += _split(self.cells(own, command))
        return elements

    def look(self, name: str, command: SimpleCommand) -> list[Cells] | None:
        """Return the elements of a variable; None if they are unknown, or depend on a branch."""
        elements = self._known.get(name)
        is_sure = self._times.get(name, 1) < 2 or set(self._blocks.get(name, ())) <= set(command.blocks)
        return elements if is_sure else None

    def words(self, word: Word, command: SimpleCommand) -> list[Word]:
        """Return the words that one word expands to; the word itself if no variable in it is known."""
        if "$" not in word.raw or not any(self._of(found, command) for found in EXPANSION.finditer(word.raw)):
            return [word]
        cells = self.cells(word, command)
        return [word] if len(cells) > LONGEST else [self._joined(part) for part in _split(cells)]

    def cells_of(self, word: Word, command: SimpleCommand) -> Cells:
        """Return the characters of a word, which an earlier expansion may have produced."""
        made = self._made.get(id(word))
        return made[1] if made else self.cells(word, command)

    def _joined(self, cells: Cells) -> Word:
        word = joined(cells)
        self._made[id(word)] = (word, cells)
        return word

    def cells(self, word: Word, command: SimpleCommand, start: int = 0) -> Cells:
        """Return a word's characters without quotes, with known variables expanded."""
        return _Walk(word, command, self).run(start)

    def _of(self, match: re.Match[str], command: SimpleCommand) -> list[Cells] | None:
        name, index = match[1] or match[2], match[3]
        elements = self.look(name, command)
        if elements is None:
            return None
        if index in ("@", "*") or name in ("@", "*"):
            return elements
        return elements[int(index or 0) : int(index or 0) + 1]


class _Walk:
    """A pass over the raw text of a word."""

    def __init__(self, word: Word, command: SimpleCommand, values: Values) -> None:
        self.word, self.command, self.values, self.raw = word, command, values, word.raw
        self.cells: Cells = []
        self.line, self.column = word.line, word.column

    def run(self, start: int) -> Cells:
        at, is_double = 0, False
        while at < len(self.raw):
            begin, char = at, self.raw[at]
            if char == "'" and not is_double:
                end = self.raw.find("'", at + 1)
                at = len(self.raw) if end < 0 else end + 1
                self._take(begin, at, start, shown=range(begin + 1, at - 1), is_quoted=True, is_live=False)
            elif char == '"':
                is_double, at = not is_double, at + 1
                self._take(begin, at, start, shown=range(0), is_quoted=True, is_live=True)
            elif char == "\\":
                at = min(at + 2, len(self.raw))
                is_kept = is_double and self.raw[at - 1] not in '$`"\\\n'
                shown = range(begin if is_kept else at - 1, at) if self.raw[at - 1] != "\n" else range(0)
                self._take(begin, at, start, shown=shown, is_quoted=True, is_live=False)
            elif char == "$" and (match := self._expansion(at)) and self._expand(match, start, is_double):
                at = match.end()
                self._take(begin, at, start, shown=range(0), is_quoted=True, is_live=True)
            else:
                at = _behind(self.raw, at)
                quoted = is_double or at > begin + 1
                self._take(begin, at, start, shown=range(begin, at), is_quoted=quoted, is_live=True)
            if len(self.cells) > 2 * LONGEST:
                break
        return self.cells

    def _take(self, begin: int, end: int, start: int, *, shown: range, is_quoted: bool, is_live: bool) -> None:
        """Step over some characters; keep those that belong to the word's value."""
        for at in range(begin, end):
            if at in shown and at >= start:
                spent = at in self.word.spent
                live = is_live and not spent
                spent = spent or (live and self.raw[at] in "$`")
                self.cells.append(Cell(self.raw[at], self.line, self.column, is_quoted, live, self.word, spent))
            if self.word.caller is None:
                is_end = self.raw[at] == "\n"
                self.line, self.column = (self.line + 1, 1) if is_end else (self.line, self.column + 1)

    def _expansion(self, at: int) -> re.Match[str] | None:
        return None if at in self.word.spent else EXPANSION.match(self.raw, at)

    def _expand(self, match: re.Match[str], start: int, is_double: bool) -> bool:
        if match.start() < start:
            return False
        elements = self.values._of(match, self.command)
        if elements is None:
            return False
        is_list = match[1] == "@" or match[2] == "@" or match[3] == "@"
        for number, element in enumerate(elements):
            if number:
                char = SPLIT if is_list or not is_double else " "
                self.cells.append(Cell(char, self.line, self.column, is_double, False, self.word))
            self.cells += [
                cell._replace(is_quoted=is_double or (cell.is_quoted and is_list), is_live=False) for cell in element
            ]
        return True


def joined(cells: Cells) -> Word:
    first = cells[0]
    text = "".join(cell.char for cell in cells)
    live = "".join(cell.char if cell.is_live else " " for cell in cells)
    home = first.home
    return Word(
        raw=text, text=text, live=live, line=first.line, column=first.column, caller=home.caller, where=home.where
    )


def _split(cells: Cells) -> list[Cells]:
    """Split characters into words at unquoted spaces."""
    parts: list[Cells] = [[]]
    for cell in cells:
        if cell.char == SPLIT or (cell.char in " \t\n" and not cell.is_quoted):
            parts.append([])
        else:
            parts[-1].append(cell)
    return [part for part in parts if part]


def _place(word: Word, at: int) -> tuple[int, int]:
    if word.caller is not None:
        return word.line, word.column
    before = word.raw[:at]
    lines = before.count("\n")
    return word.line + lines, len(before.rpartition("\n")[2]) + 1 + (0 if lines else word.column - 1)


def _behind(raw: str, at: int) -> int:
    """Return the position after one character, or after a substitution that begins here."""
    if raw[at] == "`":
        end = raw.find("`", at + 1)
        return len(raw) if end < 0 else end + 1
    if not raw.startswith(("$(", "${"), at):
        return at + 1
    opening, closing, depth = raw[at + 1], {"(": ")", "{": "}"}[raw[at + 1]], 0
    for here in range(at + 1, len(raw)):
        depth += {opening: 1, closing: -1}.get(raw[here], 0)
        if depth == 0:
            return here + 1
    return len(raw)


EXPORTS = frozenset({"export", "declare", "typeset"})


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableAssignment:
    """An assignment of a variable."""

    name: str
    value: str
    word: Word
    command: SimpleCommand
    is_exported: bool

    @property
    def live(self) -> str:
        """The value, with spaces for all that the shell of this command does not expand."""
        return self.word.live[len(self.word.text) - len(self.value) :]


def assignments(commands: list[SimpleCommand]) -> Iterator[VariableAssignment]:
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
                for part in re.findall(r"(\w+=[^,]*)", word.text.removeprefix("--export=")):
                    name, _, value = part.partition("=")
                    yield VariableAssignment(name=name, value=value, word=word, command=command, is_exported=True)


def _assigned(word: Word, command: SimpleCommand, *, is_exported: bool) -> Iterator[VariableAssignment]:
    assignment = ASSIGNMENT.match(word.text)
    if assignment:
        value = word.text[assignment.end() :]
        yield VariableAssignment(name=assignment[1], value=value, word=word, command=command, is_exported=is_exported)
