"""The script of a chain and its own modules: which of them were edited between two jobs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping

from echelon.environment import regular_files
from echelon.launch.prepare import script_and_imports
from echelon.node import private
from echelon.spec import Job

FILE = "sources.json"
"""In a run directory with checkpoints: the files of the script, as they were when the run began or was continued."""
_MISSING = "missing"


def hashes(job: Job, cwd: str) -> dict[str, str]:
    """Return the script and the modules that it imports from its folder → the SHA-256 of each.

    A program, and a module inside an image, have none.
    """
    read = script_and_imports(job, cwd)
    if read is None:
        return {}
    script, imports = read
    paths = [script.path] if script.path else []
    for name in imports.local:
        paths += [path for path in _candidates(script.folder, name) if os.path.isfile(path)]
    return {_shown(path, cwd): _digest(path) for path in dict.fromkeys(paths)}


def _candidates(folder: str, module: str) -> tuple[str, str]:
    path = os.path.join(folder, *module.split("."))
    return f"{path}.py", os.path.join(path, "__init__.py")


def _shown(path: str, cwd: str) -> str:
    """Return a path relative to the folder of the job if it lies there."""
    relative = os.path.relpath(path, cwd)
    return os.path.abspath(path) if relative.startswith("..") else relative


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(regular_files.read(path)).hexdigest()
    except OSError:
        return _MISSING


def differences(before: Mapping[str, str] | None, now: Mapping[str, str]) -> list[str]:
    """Name each file that differs, and how; `before` is None if no job has begun.

    >>> differences({"train.py": "a1", "model.py": "b1"}, {"train.py": "a2", "data.py": "c1"})
    ['train.py was edited', 'data.py is imported now', 'model.py is imported no more']
    """
    if before is None:
        return []
    edited = [f"{path} was edited" for path in before if path in now and now[path] != before[path]]
    added = [f"{path} is imported now" for path in now if path not in before]
    return edited + added + [f"{path} is imported no more" for path in before if path not in now]


def note_edits(job: Job, folder: str, cwd: str, say: Callable[[str], None]) -> None:
    """Say which files were edited since the run that is continued, whose checkpoints `folder` has; keep the hashes."""
    path = os.path.join(os.path.dirname(folder), FILE)
    now = hashes(job, cwd)
    if job.checkpoints is not None and job.checkpoints.resumes:
        edited = differences(_kept(path), now)
        if edited:
            stays = (
                "what its checkpoint holds, such as the learning rate and the position in the data, stays; the steps "
                "before it are repeated by what is written now, which must ask for the same batches and values"
            )
            say(f"note: {listed(edited)} since the run that is continued; {stays}")
    try:
        private.write(path, json.dumps(now, indent=1).encode() + b"\n")
    except OSError:
        pass  # a folder that became read-only: the ranks say so when they save


def _kept(path: str) -> dict[str, str] | None:
    try:
        hashes_before: dict[str, str] = json.loads(regular_files.read_text(path))
    except (OSError, ValueError):
        return None
    return hashes_before


def listed(names: Iterable[str], *, most: int = 5) -> str:
    """Join the first names; count the others."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
