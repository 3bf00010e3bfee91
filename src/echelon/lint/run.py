"""Lint files and the jobs inside of them: apply every rule, drop silenced findings, sort by severity."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date

from echelon.errors import UsageError
from echelon.lint import table
from echelon.lint.command import Document, SimpleCommand
from echelon.lint.finding import Edit, Finding, Hit, lines_of
from echelon.lint.job import JobScript
from echelon.lint.look import finding, is_silenced, look, ordered
from echelon.lint.pages import words
from echelon.lint.program import Program
from echelon.lint.rules.settings import SettingsFile
from echelon.lint.visibility import placed
from echelon.machines.machine import Machine
from echelon.script.source import parse

MOST_BYTES = {"python": 1 << 19, "settings": 1 << 20, "shell": 1 << 16}
"""Larger files are not written by hand. A worst case of this size, a single `srun` in each line, takes some seconds."""
PYTHON = re.compile(r"#!.*\bpython")


@dataclass(frozen=True, slots=True, kw_only=True)
class Linted:
    """The findings of some files."""

    findings: tuple[Finding, ...]
    num_silenced: int
    machines: tuple[str, ...]
    """The machines for which jobs were judged; empty if none is known."""


def lint(
    sources: Mapping[str, bytes],
    *,
    today: date,
    machine: Machine | None = None,
    machines: Mapping[str, Machine] | None = None,
    beside: Mapping[str, bytes] | None = None,
    folder_note: Callable[[str], str] = lambda _: "",
) -> Linted:
    """Return all findings in these files, worst first; files may be jobs, training scripts and settings.

    `machine` is the machine of all jobs; without it, each job's own is looked for among `machines`.
    `beside` are files that jobs call: rules read them, but report nothing about them. `folder_note` looks at a folder
    of this machine that a job names, and tells what is wrong with it.
    """
    texts = {path: decode(source, path) for path, source in sources.items()}
    others = {path: decode(source, path) for path, source in (beside or {}).items()}
    programs, broken = _programs({path: text for path, text in texts.items() if kind(path, text) == "python"})
    found_programs, _ = _programs({path: text for path, text in others.items() if kind(path, text) == "python"})
    known = (*programs, *found_programs)
    scripts = {os.path.basename(path): text for path, text in (others | texts).items() if kind(path, text) == "shell"}
    findings, jobs = list(broken), []
    for path, text in texts.items():
        if kind(path, text) == "shell":
            own = {name: other for name, other in scripts.items() if name != os.path.basename(path)}
            job = JobScript(path=path, text=text, today=today, programs=known, scripts=own, folder_note=folder_note)
            for script, lines in [(job, 0), *jobs_inside(job)]:
                jobs.append(replace(script, machine=machine or recognise(script, machines or {})))
                findings += [moved(hit, lines) for hit in look(jobs[-1:], table.OF_JOBS)]
    findings += look([placed(program, jobs) for program in programs], table.OF_PROGRAMS)
    settings = [
        SettingsFile(path=path, text=text, jobs=tuple(jobs))
        for path, text in texts.items()
        if kind(path, text) == "settings"
    ]
    findings += look(settings, table.OF_SETTINGS)
    lines_by_path = {path: lines_of(text) for path, text in texts.items()}
    kept = [each for each in findings if not is_silenced(each.code, lines_by_path[each.path], each.line)]
    names = tuple(sorted({job.machine.name for job in jobs if job.machine is not None}))
    return Linted(findings=tuple(ordered(kept)), num_silenced=len(findings) - len(kept), machines=names)


def kind(path: str, text: str) -> str:
    """Return the kind of a file, by its name or by its first line."""
    if path.endswith((".py", ".pyw")) or PYTHON.match(text):
        return "python"
    return "settings" if path.endswith((".json", ".yaml", ".yml")) else "shell"


def decode(source: bytes, path: str) -> str:
    """Return the text of a file; raise UsageError for a file that cannot be a script."""
    most = MOST_BYTES[kind(path, source[:80].decode("utf-8", "replace"))]
    if len(source) > most:
        message = f"{path} has {len(source)} bytes, but a script of its kind has at most {most}"
        raise UsageError(message, hint="echelon lint job.sh train.py")
    if b"\0" in source:
        raise UsageError(
            f"{path} is not text: it has a null byte at {source.index(0)}", hint="echelon lint job.sh train.py"
        )
    if path.endswith(".ipynb"):
        script = path.removesuffix("ipynb") + "py"
        raise UsageError(f"{path} is a notebook", hint=f"jupyter nbconvert --to script {path}; echelon lint {script}")
    return source.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")


def _programs(texts: Mapping[str, str]) -> tuple[tuple[Program, ...], list[Finding]]:
    programs, broken = [], []
    for path, text in texts.items():
        tree = parse(text.encode(), path)
        if tree is None:
            broken.append(finding(table.SYNTAX, path, lines_of(text), _syntax(text, path)))
        else:
            programs.append(Program(path=path, text=text, tree=tree))
    return tuple(programs), broken


def _syntax(text: str, path: str) -> Hit:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python shows them when the script runs
            ast.parse(text, path)
    except SyntaxError as error:
        line, column = error.lineno or 1, max(1, error.offset or 1)
        missing = re.fullmatch(r"expected '(\S+)'", error.msg or "")
        lines = lines_of(text)
        here = lines[line - 1].strip() if line <= len(lines) else ""
        if here.startswith(("!", "%")):
            message = f"Python cannot read this file: lines with {here[0]} are only for notebooks"
            return Hit(line=line, column=column, message=message, repair=f"# {here}")
        repair = f"{here}{missing[1]}" if missing and here else ""
        return Hit(line=line, column=column, message=f"Python cannot read this file: {error.msg}", repair=repair)
    except (ValueError, RecursionError, MemoryError):
        pass
    return Hit(line=1, message="Python cannot read this file: the nesting is too deep")


def recognise(job: JobScript, machines: Mapping[str, Machine]) -> Machine | None:
    """Return the only machine that has the job's partition, and its type of device if the job names one.

    If many sites have a partition of this name, the type of device must agree.
    """
    partition = job.value("partition")
    if not partition:
        return None
    matches = []
    for machine in machines.values():
        row = next((row for row in machine.partitions if row.name == partition), None)
        kinds = {kind.gres for kind in machine.node_types if kind.gres.count(":")}
        typed = any(f"{gres}:" in f"{job.value('gres')}:" for gres in kinds)
        if row is None or (":" in job.value("gres").removeprefix("gpu:") and not typed):
            continue
        is_common = partition in words()["machines"]["common_partitions"]
        if not is_common or (typed and (machine.account != "required" or job.value("account").startswith("project_"))):
            matches.append(machine)
    return matches[0] if len(matches) == 1 else None


def jobs_inside(job: JobScript) -> Iterator[tuple[JobScript, int]]:
    """Yield each job inside of a script, and the number of lines before it."""
    directive = words()["slurm"]["directive"]
    for document in job.script.documents:
        has_options = re.search(rf"^{directive}\s+-", document.text, re.MULTILINE) is not None
        command = _reader(job, document)
        if command is not None and has_options and (_submits(command) or _is_written(command)):
            text = document.text if document.is_quoted else document.text.replace("\\$", "$")
            inner = replace(job, text=f"{text}\n", writer=None if document.is_quoted else job)
            yield inner, document.line - 1


def _reader(job: JobScript, document: Document) -> SimpleCommand | None:
    return next(
        (
            command
            for command in job.script.commands
            if any(redirection.target is document.mark for redirection in command.redirections)
        ),
        None,
    )


def _submits(command: SimpleCommand) -> bool:
    return any(word.text.rpartition("/")[2] == words()["slurm"]["submit"] for word in command.argv)


def _is_written(command: SimpleCommand) -> bool:
    is_redirected = any(redirection.operator in (">", ">|") for redirection in command.redirections)
    return command.program == "tee" or (command.program == "cat" and (is_redirected or command.ending == "|"))


def moved(finding: Finding, lines: int) -> Finding:
    """Move a finding of a job inside of a script to its place there."""
    edits = tuple(
        Edit(line=edit.line + lines, column=edit.column, old=edit.old, new=edit.new) for edit in finding.edits
    )
    return replace(finding, line=finding.line + lines, edits=edits)
