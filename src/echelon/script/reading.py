"""The script of a command as one value: each part of it is read when it is first asked for, and only once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cached_property

from echelon.script import find, imports
from echelon.script.calls import Source
from echelon.spec import Command, Job


class Reading:
    """What the other rooms ask about a script; they get UsageError if there is no such script."""

    def __init__(self, command: Command, *, cwd: str = "", search_path: Sequence[str] | None = None) -> None:
        self.command = command
        self._cwd = cwd or os.getcwd()
        self._search_path = search_path_of_scripts() if search_path is None else search_path

    @cached_property
    def script(self) -> find.Script:
        is_module = self.command.kind == "module"
        return find.resolve(self.command.target, module=is_module, cwd=self._cwd, search_path=self._search_path)

    @cached_property
    def imports(self) -> imports.Imports:
        return imports.read_imports(self.script)

    @cached_property
    def source(self) -> Source | None:
        """The calls and names of the script; None if this Python cannot parse it, or if it is in an archive."""
        script = self.script
        return Source(path=script.path, tree=script.tree) if script.path and script.tree else None


def of_job(job: Job) -> Reading | None:
    """Return the script of a job, still unread; None for a program, and for a module inside an image."""
    command = job.command
    is_hidden = command.kind == "program" or (command.kind == "module" and job.container)
    return None if is_hidden else Reading(command)


def search_path_of_scripts() -> list[str]:
    """Return sys.path of the script's own Python, after its first entry."""
    ours = os.path.dirname(os.path.abspath(sys.argv[0])) if sys.argv[0] else ""
    return [entry for entry in sys.path if entry not in ("", ours)]
