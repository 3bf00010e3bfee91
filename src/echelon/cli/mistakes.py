"""Say the worst mistake of a training script in one line, when `echelon run` or `echelon submit` starts."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING

from echelon.cli.talk import say
from echelon.environment import regular_files
from echelon.errors import EchelonError

if TYPE_CHECKING:
    from echelon.spec import Command

MOST_BYTES = 1 << 16
"""A start does not read larger scripts, because that takes too long; `echelon lint` does."""
SUBMITTED = "job.sh"
"""This file exists in the run directory of a submitted job, whose submission has already reported mistakes."""


def say_worst(command: Command, *, scale: str = "off", run_directory: str = "") -> None:
    """Print the worst finding of `echelon lint` in a script, if there is one; never stop the run."""
    path = _source(command)
    if not path or (run_directory and os.path.exists(os.path.join(run_directory, SUBMITTED))):
        return
    try:
        source = regular_files.read(path, most_bytes=MOST_BYTES)
    except OSError:
        return  # another part of the start decides whether the script can be read
    from echelon.lint.scripts import mistakes

    findings = mistakes(path, source, is_scaled=scale != "off")
    if findings:
        worst, more = findings[0], f", and {len(findings) - 1} more" if len(findings) > 1 else ""
        summary = f"{worst.severity} {worst.code} in {path}:{worst.line}: {worst.message}{more}"
        say(f"lint: {summary}; echelon lint {shlex.quote(path)}")


def _source(command: Command) -> str:
    """Return the path of the file that becomes `__main__`; empty if there is no Python file."""
    if command.kind == "program":
        return ""
    if command.kind == "script":
        return command.target if command.target.endswith(".py") else ""
    from echelon.script.find import resolve

    try:
        script = resolve(command.target, module=True, cwd=os.getcwd(), search_path=sys.path[1:])
    except EchelonError:
        return ""  # the run itself reports this
    return os.path.relpath(script.path) if script.path and script.path.endswith(".py") else ""
