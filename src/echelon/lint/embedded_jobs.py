"""Find jobs inside of a script: here-documents that go to the batch system or to a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from echelon.lint.command import Command, Document
from echelon.lint.finding import Edit, Finding
from echelon.lint.job import Job
from echelon.lint.toml import words


def jobs_inside(job: Job) -> Iterator[tuple[Job, int]]:
    """Yield each job inside of a script, and the number of lines before it."""
    directive = words()["slurm"]["directive"]
    for document in job.script.documents:
        has_options = re.search(rf"^{directive}\s+-", document.text, re.MULTILINE) is not None
        command = _reader(job, document)
        if command is not None and has_options and (_submits(command) or _is_written(command)):
            text = document.text if document.is_quoted else document.text.replace("\\$", "$")
            inner = replace(job, text=f"{text}\n", writer=None if document.is_quoted else job)
            yield inner, document.line - 1


def _reader(job: Job, document: Document) -> Command | None:
    """Return the command that reads a here-document."""
    return next(
        (
            command
            for command in job.script.commands
            if any(redirection.target is document.mark for redirection in command.redirections)
        ),
        None,
    )


def _submits(command: Command) -> bool:
    return any(word.text.rpartition("/")[2] == words()["slurm"]["submit"] for word in command.argv)


def _is_written(command: Command) -> bool:
    is_redirected = any(redirection.operator in (">", ">|") for redirection in command.redirections)
    return command.program == "tee" or (command.program == "cat" and (is_redirected or command.ending == "|"))


def moved(finding: Finding, lines: int) -> Finding:
    """Move a finding of a job inside of a script to its place there."""
    edits = tuple(
        Edit(line=edit.line + lines, column=edit.column, old=edit.old, new=edit.new) for edit in finding.edits
    )
    return replace(finding, line=finding.line + lines, edits=edits)
