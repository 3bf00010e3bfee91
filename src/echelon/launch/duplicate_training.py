"""Find a program after `--` that trains a script for one device: each rank would repeat the whole training."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from echelon.environment import regular_files
from echelon.errors import UsageError
from echelon.spec import Command

_PYTHON = re.compile(r"(?:.*/)?python(?:\d(?:\.\d+)?)?")
_SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
MOST_BYTES = 1 << 20  # the most bytes of a shell script that are read


def refuse(command: Command, num_nodes: int, ranks_per_node: int, *, cwd: str, search_path: list[str]) -> None:
    """Raise UsageError if the ranks of a program would repeat one training and write the same files."""
    num_ranks = num_nodes * ranks_per_node
    if command.kind != "program" or num_ranks == 1:
        return
    subject, option = (f"each of the {num_ranks} ranks", f"-n {ranks_per_node} ") if num_ranks else ("each rank", "")
    for python in _pythons(command, cwd):
        if _trains_alone(python, cwd, search_path):
            words = [*(["-m"] if python.kind == "module" else []), python.target, *python.arguments]
            raise UsageError(
                f"{subject} would train all of {python.target}, and write the same files: "
                "echelon starts a program after -- unchanged, and the script does not distribute its work",
                hint=f"echelon run {option}{shlex.join(words)}   or, to start copies: echelon run --scale off …",
            )


def _pythons(command: Command, cwd: str) -> list[Command]:
    """Return the Python scripts and modules that a program starts, as far as its command line shows."""
    words = [command.target, *command.arguments]
    first = os.path.basename(words[0])
    if first.endswith(".py"):
        return [Command(kind="script", target=words[0], arguments=tuple(words[1:]))]
    script = words[1] if first in _SHELLS and len(words) > 1 else words[0] if first.endswith(".sh") else ""
    if not script:
        return _after_python(words)
    return [found for line in _lines(os.path.join(cwd, script)) for found in _after_python(line)]


def _lines(path: str) -> list[list[str]]:
    """Return the words of each line of a shell script."""
    try:
        text = regular_files.read(path, most_bytes=MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    split_lines = []
    for line in text.replace("\\\n", " ").splitlines():
        try:
            split_lines.append(shlex.split(line, comments=True))
        except ValueError:
            continue  # a quotation over several lines
    return split_lines


def _after_python(words: Sequence[str]) -> list[Command]:
    """Return the words after the first Python; the words before it are a wrapper: env, numactl, time."""
    at = next((place for place, word in enumerate(words) if _PYTHON.fullmatch(word)), len(words)) + 1
    while at < len(words) and words[at].startswith("-"):
        if words[at] == "-m" and at + 1 < len(words):
            return [Command(kind="module", target=words[at + 1], arguments=tuple(words[at + 2 :]))]
        if words[at] == "-c":
            return []
        at += 2 if words[at] in _WITH_VALUE else 1
    return [Command(kind="script", target=words[at], arguments=tuple(words[at + 1 :]))] if at < len(words) else []


def _trains_alone(command: Command, cwd: str, search_path: list[str]) -> bool:
    """Say whether a script trains and does not distribute the training itself."""
    from echelon.script import distributes, find, imports

    try:
        script = find.resolve(command.target, module=command.kind == "module", cwd=cwd, search_path=search_path)
        imported = imports.read_imports(script)
    except UsageError:
        return False  # a name that the shell expands, or a file inside the image
    return distributes.trains(imported) and not distributes.how(imported)
