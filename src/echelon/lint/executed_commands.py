"""Find the commands that a script executes, the files that it calls, and what runs only before a submission."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from echelon.lint.command import GIVEN, SHELLS, Document, ParsedScript, Redirection, SimpleCommand, Word, script_in
from echelon.lint.pages import words
from echelon.lint.shell import parse, parse_at, unescaped
from echelon.lint.values import Cells, Values

EXPORTS = frozenset({"export", "declare", "typeset", "local", "readonly"})
INERT = frozenset(
    {
        "echo", "printf", "module", "ml", "which", "pip", "pip3", "type", "alias", "grep", "sed", "awk", "cat",
        "ls", "cp", "mv", "rm", "mkdir", "touch", "cd", "test", "[", "[[", "ln", "find", "tar", "unset", "read", "let",
        "git", "wget", "curl", "for", "case", "select", "function", "source", ".", "set", "trap", "chmod", "hash",
        "squeue", "sinfo", "sacct", "scancel", "scontrol", "wait", "kill", "pkill", "sleep", "exit", "return", "logger",
        "mail", "rsync", "scp", "tee", "head", "tail", "dirname", "basename", "realpath", "readlink", "man", "make",
    }
) | EXPORTS  # fmt: skip
"""Programs that do not run the programs that their arguments name."""
Places = Callable[[int], tuple[int, int]]
MOST = 3000  # the most commands that are followed; scripts that call each other endlessly would have more
DEEPEST = 6


def running(script: ParsedScript, scripts: Mapping[str, str]) -> list[SimpleCommand]:
    """Return the commands that a script executes, in order; `scripts` are the texts of other scripts by name."""
    runner = _Runner(script, scripts)
    runner.run(script.commands, outer=None, depth=0)
    called = set(runner.called)
    for name, body in list(runner.functions.items()):
        if name not in called:  # another script calls this one
            runner.run(body, outer=None, depth=1, inside=name)
    return runner.commands


class _Runner:
    def __init__(self, script: ParsedScript, scripts: Mapping[str, str]) -> None:
        self.commands: list[SimpleCommand] = []
        self.values = Values()
        self.functions: dict[str, list[SimpleCommand]] = {}
        self.called: list[str] = []
        self.scripts = dict(scripts)
        self.spent: dict[str, frozenset[int]] = {}
        """What this script has expanded in the scripts that it writes, by their names."""
        self.documents: dict[int, Document] = {id(document.mark): document for document in script.documents}

    def run(self, commands: list[SimpleCommand], *, outer: SimpleCommand | None, depth: int, inside: str = "") -> None:
        """Follow commands; skip commands inside of quotes, which are followed with the outer command."""
        for command in commands:
            if command.outer is not None or len(self.commands) >= MOST:
                continue
            function = next((block.name for block in command.blocks if block.kind == "function"), "")
            if function and function != inside:
                self.functions.setdefault(function, []).append(command)
                continue
            self._one(command, outer, depth, inside)

    def _one(self, command: SimpleCommand, outer: SimpleCommand | None, depth: int, inside: str) -> None:
        filled = self._filled(command, outer)
        self.commands.append(filled)
        self._learn(command)
        if depth >= DEEPEST or not filled.argv:
            return
        program = filled.argv[0].text
        if program in self.functions and program != inside:
            self.called.append(program)
            self._with_arguments(filled)
            self.run(self.functions[program], outer=outer, depth=depth + 1, inside=program)
        elif program == "eval":
            text, place, _ = self._text(filled.argv[1:], command)
            self.run(parse_at(text, 1, 1, place).commands, outer=outer, depth=depth + 1, inside=inside)
        else:
            self._inner(command, filled, depth, inside)
            self._called(filled, outer, depth)
        self._document(filled, depth)

    def _filled(self, command: SimpleCommand, outer: SimpleCommand | None) -> SimpleCommand:
        """Return a command with known variables replaced; its assignments stay as written."""
        words = list(command.assignments)
        if command.program in EXPORTS:
            words += command.argv
        else:
            words += [new for word in command.argv for new in self.values.words(word, command)]
        redirections = tuple(self._redirected(each, command) for each in command.redirections)
        is_same = len(words) == len(command.words) and all(map(operator.is_, words, command.words))
        if outer is command.outer and is_same and redirections == command.redirections:
            return command
        return replace(command, words=tuple(words), outer=outer, redirections=redirections, source=command)

    def _redirected(self, redirection: Redirection, command: SimpleCommand) -> Redirection:
        words = self.values.words(redirection.target, command) if "<" not in redirection.operator else []
        return replace(redirection, target=words[0]) if len(words) == 1 else redirection

    def _learn(self, command: SimpleCommand) -> None:
        if not command.argv:
            for word in command.assignments:
                self.values.assign(word, command)
        elif command.program in EXPORTS:
            for word in command.argv[1:]:
                self.values.assign(word, command)
        elif command.program in ("for", "select", "read", "mapfile", "readarray", "unset", "getopts"):
            for word in command.argv[1:]:
                self.values.forget(word.text)

    def _with_arguments(self, command: SimpleCommand, at: int = 0) -> None:
        """Set $1 and $@ to the arguments of a call."""
        cells = [self.values.cells_of(word, command) for word in command.argv[at + 1 :]]
        for name in ("@", "*"):
            self.values.give(name, cells)
        for number in range(1, 10):
            self.values.give(str(number), cells[number - 1 : number])

    def _inner(self, command: SimpleCommand, filled: SimpleCommand, depth: int, inside: str) -> None:
        """Follow the script after a shell's -c."""
        at = 0 if command.program in INERT else script_in(filled.words)
        if at:
            body = filled.words[at]
            text, place, spent = self._text((body,), command)
            inner = parse_at(text, body.line, body.column, None if body.caller else place, spent).commands
            self.run(_moved(inner, body), outer=filled, depth=depth + 1, inside=inside)

    def _called(self, filled: SimpleCommand, outer: SimpleCommand | None, depth: int) -> None:
        """Follow a script that was given beside this one."""
        at = _script_at(filled, self.scripts)
        if at < 0:
            return
        word = filled.argv[at]
        name = os.path.basename(word.text)
        is_sourced = filled.program in ("source", ".")
        self._with_arguments(filled, at)
        inner = parse_at(self.scripts[name], 1, 1, spent=self.spent.get(name, frozenset()))
        caller = word.caller or word
        moved = [_called_command(command, caller, name) for command in inner.commands if command.outer is None]
        kept = self.scripts.pop(name)
        self.run(moved, outer=outer if is_sourced or at == 0 else filled, depth=depth + 1)
        self.scripts[name] = kept

    def _text(self, words: tuple[Word, ...], command: SimpleCommand) -> tuple[str, Places, frozenset[int]]:
        """Return the text of several words, the place of each character, and what this shell has expanded."""
        cells: Cells = []
        for word in words:
            if cells:
                cells.append(cells[-1]._replace(char=" "))
            cells += self.values.cells_of(word, command)
        places = [(cell.line, cell.column) for cell in cells] or [(1, 1)]
        spent = frozenset(at for at, cell in enumerate(cells) if cell.is_spent)
        return ("".join(cell.char for cell in cells), lambda at: places[min(at, len(places) - 1)], spent)

    def _document(self, filled: SimpleCommand, depth: int) -> None:
        """Follow a here-document that a shell reads; keep one that is written to a script for later calls."""
        for redirection in filled.redirections:
            document = self.documents.get(id(redirection.target))
            if document is None:
                continue
            text, spent = (document.text, frozenset[int]()) if document.is_quoted else unescaped(document.text)
            written = next((r.target.text for r in filled.redirections if r.operator in (">", ">|")), "")
            if filled.program == "cat" and written:
                name = os.path.basename(written)
                if self.scripts.setdefault(name, text) is text:
                    self.spent[name] = spent
            elif any(word.text.rpartition("/")[2] in SHELLS for word in filled.argv) and not _has_script(filled):
                is_alone = filled.program in SHELLS
                inner = parse_at(text, document.line, 1, spent=spent).commands
                self.run(inner, outer=filled.outer if is_alone else filled, depth=depth + 1)


def _has_script(command: SimpleCommand) -> bool:
    at = next(i for i, word in enumerate(command.argv) if word.text.rpartition("/")[2] in SHELLS)
    return any(not word.text.startswith("-") or GIVEN.fullmatch(word.text) for word in command.argv[at + 1 :])


def _script_at(command: SimpleCommand, scripts: Mapping[str, str]) -> int:
    """Return the index of the word that calls a known script; -1 for none."""
    argv = command.argv
    if not scripts or (command.program in INERT and command.program not in ("source", ".")):
        return -1
    for index, word in enumerate(argv):
        if os.path.basename(word.text) not in scripts or word.text.startswith("-"):
            continue
        before = argv[index - 1].text if index else ""
        is_run = index == 0 or before.rpartition("/")[2] in (*SHELLS, "source", ".") or "/" in word.text
        if is_run or word.text.endswith(".sh"):
            return index
    return -1


def _called_command(command: SimpleCommand, caller: Word, name: str) -> SimpleCommand:
    def moved(word: Word) -> Word:
        where = f"{name}, line {word.line}"
        return replace(word, line=caller.line, column=caller.column, caller=caller, where=where)

    redirections = tuple(replace(each, target=moved(each.target)) for each in command.redirections)
    return replace(command, words=tuple(map(moved, command.words)), redirections=redirections)


def _moved(commands: list[SimpleCommand], body: Word) -> list[SimpleCommand]:
    """Return commands from a word of another script, placed at its caller."""
    if body.caller is None:
        return commands
    at = {"line": body.line, "column": body.column, "caller": body.caller, "where": body.where}
    return [
        replace(command, words=tuple(replace(word, **at) for word in command.words))  # type: ignore[arg-type]
        for command in commands
    ]


NAME = re.compile(r"(?:\.{1,2}/)*[\w][\w./-]*\.(?:sh|bash|slurm|py)|\./[\w./-]+")
MOST_BYTES = 1 << 16
MOST_FILES = 20  # the most files that are looked for; a script calls few


def called(text: str) -> list[str]:
    """Return the paths of the files that a script calls, as written.

    >>> called("source env.sh\\nsrun ./launch.sh python train.py\\nrm old.sh")
    ['env.sh', './launch.sh', 'train.py']
    """
    called_paths: dict[str, None] = {}
    for command in parse(text).commands:
        if command.program in INERT and command.program not in ("source", "."):
            continue
        for index, word in enumerate(command.argv):
            path = word.text
            before = command.argv[index - 1].text.rpartition("/")[2] if index else ""
            is_called = path.endswith((".sh", ".py", ".bash")) or before in (*SHELLS, "source", ".") or index == 0
            if is_called and NAME.fullmatch(path) and not path.startswith("/"):
                called_paths[path] = None
    return list(called_paths)[:MOST_FILES]


OF_A_JOB = r"(?:JOB_?ID|JOB_NAME|SUBMIT_DIR|(?:JOB_)?NODELIST|JOB_PARTITION|CLUSTER_NAME)\b"


def within_job(commands: list[SimpleCommand], written: list[SimpleCommand]) -> list[SimpleCommand]:
    """Return the commands without those that run only before the submission; `written` are those of the script."""
    outside = _before_submission(written)
    return [each for each in commands if id(_outermost(each)) not in outside] if outside else commands


def _outermost(command: SimpleCommand) -> SimpleCommand:
    while command.outer is not None:
        command = command.outer
    return command.source or command


def _before_submission(commands: list[SimpleCommand]) -> frozenset[int]:
    """Return the identities of commands behind a test that no variable of a job is set."""
    outside: set[int] = set()
    for at, command in enumerate(commands):
        is_unset = _is_unset(command)
        if is_unset is None:
            continue
        if command.keyword in ("if", "elif") and command.ending not in ("&&", "||"):
            block = command.blocks[-1]
            branches = [(block.number, block.branch)] if is_unset else [(block.number, block.branch + 1)]
            outside |= {id(each) for each in commands[at + 1 :] if _is_within(each, branches)}
        elif not command.keyword and command.ending == ("&&" if is_unset else "||"):
            outside |= _chained(commands[at + 1 :], len(command.blocks))
    return frozenset(outside)


def _is_within(command: SimpleCommand, branches: list[tuple[int, int]]) -> bool:
    return command.outer is None and any((block.number, block.branch) in branches for block in command.blocks)


def _chained(commands: list[SimpleCommand], depth: int) -> set[int]:
    chain: set[int] = set()
    for command in commands:
        is_grouped = len(command.blocks) > depth
        if command.words[0].raw == "}" and not is_grouped:
            break
        chain.add(id(command))
        if not is_grouped and command.ending != "&&":
            break
    return chain


def _is_unset(command: SimpleCommand) -> bool | None:
    """Say whether a test asks that a variable of a job is unset (True) or set (False); None for another test."""
    if command.program not in ("[", "[[", "test"):
        return None
    name = rf"x?\$?\{{?{words()['slurm']['variable']}{OF_A_JOB}(?:[:+-][^}}]*)?\}}?"
    text = " ".join(word.text for word in command.argv[1:] if word.text not in ("]", "]]")).strip()
    if re.fullmatch(rf"-z {name}|! (?:-[nv] )?{name}|{name} ==? *x?", text):
        return True
    return False if re.fullmatch(rf"(?:-[nv] )?{name}|! -z {name}|{name} != *x?", text) else None
