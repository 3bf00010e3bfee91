"""Parse a shell script into commands and words, with the place of each; nothing is expanded or run.

The parser knows the grammar that scripts need to start programs: quotes, continuations, comments, here-documents,
substitutions, operators. The text of `bash -c '…'` is parsed as a script of its own.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable

from echelon.lint import command as parsed
from echelon.lint.command import Blocks, Document, ParsedScript, Redirection, SimpleCommand, SyntaxProblem, Word

ENDS = " \t\n;&|()<>"
KEYWORDS = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "time"})
OPERATOR = re.compile(r"&&|\|\||;;&?|;&|\|&|[;&|()]")
REDIRECTION = re.compile(r"<<<|<<-?|&>>?|[<>]\(|>>|[<>]&|>\||<>|[<>]")
CASE = re.compile(r"(?<![\w$./-])(?:case(?=[ \t][^\n]*[ \t]in\b)|esac\b)")
"""Match the beginning and the end of a `case`, whose patterns end in brackets."""
DOCUMENT = re.compile(r"<<-?[ \t]*(['\"\\]?)([A-Za-z_]\w*)['\"]?(?!<)[^\n]*\n(?:.*\n){0,200}?[ \t]*\2(?=\n|$)")
"""Match a here-document from its operator to the end of its last line."""
DEEPEST = 4  # bash -c inside bash -c
MOST_NESTED = 20  # substitutions in quotes in substitutions


def parse(text: str) -> ParsedScript:
    """Parse a whole script; text that cannot be parsed becomes a problem, never an exception.

    >>> [word.text for word in parse("srun  -n 2 'a b' # now").commands[0].words]
    ['srun', '-n', '2', 'a b']
    """
    script = ParsedScript()
    _Reader(text, script, first_line=1, first_column=1, outer=None, depth=0).run()
    return script


def parse_at(
    text: str, line: int, column: int, place: Callable[[int], tuple[int, int]] | None = None,
    spent: frozenset[int] = frozenset(),
) -> ParsedScript:  # fmt: skip
    """Parse a piece of a script that begins at a place of its file; `place` maps each character to its place.

    `spent` are the positions of $ and ` that an outer shell has expanded: they are text here.
    """
    script = ParsedScript()
    _Reader(text, script, first_line=line, first_column=column, outer=None, depth=0, place=place, spent=spent).run()
    return script


def expansions(text: str, live: str) -> frozenset[int]:
    """Return the positions of $ and ` that a shell expands in a word or a here-document."""
    return frozenset(at for at, char in enumerate(text) if char in "$`" and live[at : at + 1] == char)


def unescaped(text: str) -> tuple[str, frozenset[int]]:
    """Return a here-document as the shell passes it on, and the positions of what the shell has expanded.

    >>> unescaped("a $B \\\\$C")
    ('a $B $C', frozenset({2}))
    """
    shown: list[str] = []
    spent: set[int] = set()
    at = 0
    while at < len(text):
        is_escape = text[at] == "\\" and text[at + 1 : at + 2] in ("$", "`", "\\")
        at += is_escape
        if not is_escape and text[at] in "$`":
            spent.add(len(shown))
        shown.append(text[at])
        at += 1
    return "".join(shown), frozenset(spent)


class _Reader:
    def __init__(
        self, text: str, script: ParsedScript, *, first_line: int, first_column: int, outer: SimpleCommand | None,
        depth: int, place: Callable[[int], tuple[int, int]] | None = None, spent: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        self.known_place, self.spent = place, spent
        self.text, self.script, self.outer, self.depth = text, script, outer, depth
        self.first_line, self.first_column = first_line, first_column
        self.starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self.at = 0
        self.words: list[Word] = []
        self.keyword = ""
        self.awaited: list[tuple[Word, bool]] = []
        self.redirections: list[Redirection] = []
        self.blocks = Blocks()

    def run(self) -> None:
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith("\\\n", self.at):
                self.at += 2
            elif char in " \t\r":
                self.at += 1
            elif char == "#":
                self.at = self._until("\n")
            elif char == "\n":
                self._end("\n")
                self.at += 1
                self._documents()
            elif char in "<>" or self.text.startswith("&>", self.at):
                self._redirection()
            elif char in ";&|()":
                self._operator()
            else:
                self._word()
        self._end()

    def _place(self, at: int) -> tuple[int, int]:
        if self.known_place is not None:
            return self.known_place(at)
        row = bisect.bisect_right(self.starts, at) - 1
        column = at - self.starts[row] + 1
        return self.first_line + row, column + (self.first_column - 1 if row == 0 else 0)

    def _until(self, mark: str, start: int | None = None) -> int:
        end = self.text.find(mark, self.at if start is None else start)
        return len(self.text) if end < 0 else end

    def _end(self, ending: str = "") -> None:
        if self.words:
            first = self.words[0]
            is_closing = first.raw in parsed.CLOSING
            if is_closing:
                self.blocks.close(first.raw)
            command = SimpleCommand(
                words=tuple(self.words), keyword=self.keyword, outer=self.outer, ending=ending,
                blocks=tuple(self.blocks.open), redirections=tuple(self.redirections),
            )  # fmt: skip
            self.script.commands.append(command)
            self.blocks.command(first)
            self._inner(command)
        self.words, self.keyword, self.redirections = [], "", []

    def _inner(self, command: SimpleCommand) -> None:
        """Parse the script of a `bash -c`, wherever it stands in the command."""
        at = parsed.script_in(command.words) if self.depth < DEEPEST else 0
        if at:
            body = command.words[at]
            quoted = body.raw[:1] in "'\"" and len(body.raw) > 1
            is_plain = body.raw[:1] == "'" and quoted
            _Reader(
                body.raw[1:-1] if is_plain else body.text,
                self.script,
                first_line=body.line,
                first_column=body.column + quoted,
                outer=command,
                depth=self.depth + 1,
                spent=frozenset() if is_plain else expansions(body.text, body.live),
            ).run()

    def _operator(self) -> None:
        if self.text.startswith("((", self.at) and [word.raw for word in self.words] in ([], ["for"]):
            self.at = self._arithmetic(self.at + 2)
            return
        match = OPERATOR.match(self.text, self.at)
        operator = match.group() if match else self.text[self.at]
        if operator == "(" and self.words:
            behind = self.text.find(")", self.at)
            if behind >= 0 and not self.text[self.at + 1 : behind].strip():
                self._define(self.words[-1].text)
                self.at = behind + 1
                return
        self._end(operator)
        if operator == "(":
            self.blocks.bracket()
        elif operator == ")":
            self.blocks.unbracket()
        self.at += len(operator)

    def _define(self, name: str) -> None:
        """Remember the name of the function whose body comes next."""
        self.blocks.defined = name
        self.words, self.keyword, self.redirections = [], "", []

    def _redirection(self) -> None:
        match = REDIRECTION.match(self.text, self.at)
        operator = match.group() if match else self.text[self.at]
        if operator in ("<(", ">("):
            self._word()
            return
        if self.words and self.words[-1].raw.isdigit() and self.text[self.at - 1].isdigit():
            self.words.pop()  # the 2 of 2>&1
        self.at += len(operator)
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1
        is_comment = self.text.startswith("#", self.at) and self.text[self.at - 1] in " \t"
        if self.at < len(self.text) and self.text[self.at] not in ENDS and not is_comment:
            target = self._read_word()
            self.redirections.append(Redirection(operator=operator, target=target))
            if operator in ("<<", "<<-"):
                self.awaited.append((target, operator == "<<-"))

    def _documents(self) -> None:
        for mark, strips in self.awaited:
            start, lines = self.at, []
            while self.at < len(self.text):
                stop = self._until("\n")
                line = self.text[self.at : stop]
                self.at = min(stop + 1, len(self.text))
                if (line.lstrip("\t") if strips else line) == mark.text:
                    break
                lines.append(line)
            first, is_quoted = self._place(start)[0], mark.raw != mark.text
            document = Document(text="\n".join(lines), line=first, is_quoted=is_quoted, mark=mark)
            self.script.documents.append(document)
        self.awaited = []

    def _word(self) -> None:
        word = self._read_word()
        if word.raw == "{" and len(self.words) == 2 and self.words[0].raw == "function":
            self._define(self.words[1].text)
        if not self.words and word.raw in KEYWORDS:
            self.blocks.keyword(word.raw)
            self.keyword = self.keyword or word.raw
        else:
            self.words.append(word)

    def _read_word(self) -> Word:
        start = self.at
        text, live = [], []
        while self.at < len(self.text) and (self.text[self.at] not in ENDS or self.at == start):
            shown, expanded = self._part(start)
            text.append(shown)
            live.append(expanded)
        line, column = self._place(start)
        raw = self.text[start : self.at]
        spent = frozenset(at - start for at in self.spent if start <= at < self.at) if self.spent else self.spent
        return Word(raw=raw, text="".join(text), live="".join(live), line=line, column=column, spent=spent)

    def _part(self, start: int) -> tuple[str, str]:
        """Parse one part of a word; return it without quotes, and the part of it that is expanded."""
        begin, char = self.at, self.text[self.at]
        if char == "'" or self.text.startswith("$'", begin):
            self.at += char == "$"
            text = self._single(escapes=char == "$")
            return text, " " * len(text)
        if char == '"':
            return self._double()
        if char == "\\":
            self.at += 2
            escaped = self.text[begin + 1 : self.at].replace("\n", "")
            return escaped, " " * len(escaped)
        if char in "$`<>" and self._skip():
            pass
        elif self.text.startswith("=(", begin) and begin > start:
            self.at = self._closing(begin + 2, ")", has_comments=True)  # NAME=(…)
        else:
            self.at += 1
        return self.text[begin : self.at], self._live(begin)

    def _live(self, begin: int) -> str:
        """Return the text up to here, without what an outer shell has expanded."""
        part = self.text[begin : self.at]
        if self.spent.isdisjoint(range(begin, self.at)):
            return part
        return "".join(" " if at in self.spent else char for at, char in enumerate(part, begin))

    def _skip(self) -> bool:
        """Step over a substitution, if one begins here."""
        for opening, closing in (("$((", "))"), ("$(", ")"), ("${", "}"), ("<(", ")"), (">(", ")")):
            if self.text.startswith(opening, self.at):
                if closing == "))":
                    self.at = self._arithmetic(self.at + 3)
                else:
                    self.at = self._closing(self.at + len(opening), closing, has_comments=opening == "$(")
                return True
        if self.text[self.at] == "`":
            self.at = self._close(self.at, "`", "a backquote")
            return True
        return False

    def _single(self, *, escapes: bool = False) -> str:
        begin = self.at
        self.at = self._close(begin, "'", "a single quote", escapes=escapes)
        return self.text[begin + 1 : self.at - 1]

    def _double(self) -> tuple[str, str]:
        begin = self.at
        self.at += 1
        text, live = [], []
        while self.at < len(self.text) and self.text[self.at] != '"':
            at, char = self.at, self.text[self.at]
            if char == "\\":
                self.at += 2
                escaped = self.text[at + 1 : at + 2]
                text.append("" if escaped == "\n" else escaped if escaped in '$`"\\' else char + escaped)
                live.append(" " * len(text[-1]))
                continue
            if char not in "$`" or not self._skip():
                self.at += 1
            text.append(self.text[at : self.at])
            live.append(self._live(at))
        if self.at >= len(self.text):
            self._problem("a double quote is not closed", begin)
        self.at += 1
        return "".join(text), "".join(live)

    def _close(self, begin: int, mark: str, name: str, *, escapes: bool = False) -> int:
        at = begin + 1
        while at < len(self.text) and self.text[at] != mark:
            at += 2 if self.text[at] == "\\" and (escapes or mark == "`") else 1
        if at >= len(self.text):
            self._problem(f"{name} is not closed", begin)
        return at + 1

    def _arithmetic(self, at: int) -> int:
        """Return the position after the )) that closes the brackets opened before `at`."""
        depth, begin = 2, at
        while at < len(self.text) and depth:
            char = self.text[at]
            depth += {"(": 1, ")": -1}.get(char, 0)
            at += 2 if char == "\\" else 1
        if depth:
            self._problem("a )) is missing", max(0, begin - 2))
        return min(at, len(self.text))

    def _closing(self, at: int, mark: str, *, has_comments: bool = False, depth: int = 0) -> int:
        """Return the position after the bracket that closes the one opened before `at`."""
        begin, opening, nesting = at, {")": "(", "}": "{"}[mark], 1
        cases: list[int] = []
        while at < len(self.text):
            char = self.text[at]
            if char == "\\":
                at += 1
            elif char in "'\"" and mark == ")":
                at = self._quoted(at, depth) - 1
            elif char == "#" and has_comments and self.text[at - 1] in " \t\n":
                at = self._until("\n", at) - 1
            elif char == "<" and has_comments and (document := DOCUMENT.match(self.text, at)):
                at = document.end() - 1
            elif char in "ce" and has_comments and (word := CASE.match(self.text, at)):
                cases = [*cases, nesting] if word.group() == "case" else cases[:-1]
            elif char == opening:
                nesting += 1
            elif char == mark and nesting not in cases[-1:]:  # else it ends a pattern of the case
                nesting -= 1
                if nesting == 0:
                    return at + 1
            at += 1
        self._problem(f"a {mark} is missing", begin - 1)
        return len(self.text)

    def _quoted(self, at: int, depth: int) -> int:
        """Return the position after a quoted text, which may contain substitutions with quotes of their own."""
        mark, end = self.text[at], at + 1
        while end < len(self.text) and self.text[end] != mark:
            if mark == '"' and self.text.startswith("$(", end) and depth < MOST_NESTED:
                end = self._closing(end + 2, ")", has_comments=self.text[end + 2 : end + 3] != "(", depth=depth + 1)
            else:
                end += 2 if mark == '"' and self.text[end] == "\\" else 1
        return end + 1

    def _problem(self, text: str, at: int) -> None:
        if self.outer is None:
            line, column = self._place(at)
            self.script.problems.append(SyntaxProblem(what=text, line=line, column=column))
