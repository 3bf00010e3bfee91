"""Track the open blocks of a shell script: branches, loops, groups, functions."""

from __future__ import annotations

from dataclasses import replace

from echelon.lint.command import Block, Word

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
        """Close the block that a keyword ends."""
        kinds = {CLOSING[word], "function"} if word == "}" else {CLOSING.get(word, "")}
        at = next((i for i in range(len(self.open) - 1, -1, -1) if self.open[i].kind in kinds), None)
        if at is not None:
            del self.open[at:]

    def bracket(self) -> None:
        """Open a subshell."""
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
