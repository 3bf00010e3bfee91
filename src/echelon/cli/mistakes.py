"""The worst mistake of a training script, in one line that `echelon run` and `echelon submit` say at their start."""

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
"""Larger scripts take longer to read than a start may cost: `echelon lint` reads them."""
SUBMITTED = "job.sh"
"""In the run directory of a job that `echelon submit` made, which has said it."""


def say_worst(command: Command, *, scale: str = "off", run_directory: str = "") -> None:
    """Say the worst that `echelon lint` finds in a script, if anything; whatever happens, the run goes on."""
    path = _source(command)
    if not path or (run_directory and os.path.exists(os.path.join(run_directory, SUBMITTED))):
        return
    try:
        source = regular_files.read(path, most_bytes=MOST_BYTES)
    except OSError:
        return  # not for us to read: whether the run may begin is not decided here
    from echelon.lint.scripts import mistakes

    found = mistakes(path, source, is_scaled=scale != "off")
    if found:
        worst, more = found[0], f", and {len(found) - 1} more" if len(found) > 1 else ""
        what = f"{worst.severity} {worst.code} in {path}:{worst.line}: {worst.message}{more}"
        say(f"lint: {what}; echelon lint {shlex.quote(path)}")


def _source(command: Command) -> str:
    """Return the file that becomes `__main__`, as one would name it here; empty where there is none to read."""
    if command.kind == "program":
        return ""
    if command.kind == "script":
        return command.target if command.target.endswith(".py") else ""
    from echelon.script.find import resolve

    try:
        found = resolve(command.target, module=True, cwd=os.getcwd(), search_path=sys.path[1:])
    except EchelonError:
        return ""  # said by the run itself
    return os.path.relpath(found.path) if found.path and found.path.endswith(".py") else ""
