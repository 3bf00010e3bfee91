"""The command lines that stand in the first comment of each example, run as they are."""

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

EXAMPLES = Path(__file__).parents[2] / "examples"
FRAMEWORKS = EXAMPLES / "frameworks"
LINE = re.compile(r"^    ((?:python|echelon|mpiexec|horovodrun|salloc) .*?)(?:   .*)?$", re.MULTILINE)
LOSS = re.compile(r"^step (\d+) loss (\d+\.\d{6})$", re.MULTILINE)
STEPS = 6
SECONDS = 150


class Line(NamedTuple):
    """One command line, and the example in whose comment it stands."""

    example: Path
    command: str

    @property
    def is_for_nodes(self) -> bool:
        return self.command.startswith("salloc")

    @property
    def id(self) -> str:
        return self.command.partition(self.example.name)[0].strip() + f" {self.example.stem}"


def missing(package: str) -> bool:
    return importlib.util.find_spec(package) is None


def lines_of(example: Path) -> list[Line]:
    """Return the command lines of an example's first comment."""
    comment = ast.get_docstring(ast.parse(example.read_text()), clean=False) or ""
    return [Line(example, found[1]) for found in LINE.finditer(comment)]


def run(line: Line, folder: Path, environ: Mapping[str, str], *more: str) -> subprocess.CompletedProcess[str]:
    """Run a line in a folder, with `echelon` and `python` those of this interpreter, and more options at its end."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    echelon = programs / "echelon"
    echelon.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m echelon "$@"\n')
    echelon.chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), environ.get("PATH", os.defpath)])
    words = shlex.split(line.command.replace(line.example.name, str(line.example)))
    return subprocess.run(
        ["timeout", "--kill-after=15", str(SECONDS), *words, *more],  # ends salloc and its job too
        cwd=folder,
        env={**environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def losses(done: subprocess.CompletedProcess[str], *, times: int = 1) -> list[float]:
    """Return the loss of every step of a run, of so many trainings in a row, that must have ended well."""
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout[-500:]}\n{done.stderr[-3000:]}"
    found = LOSS.findall(done.stdout)
    steps = list(range(1, len(found) // times + 1))
    assert [int(step) for step, _ in found] == steps * times, done.stdout  # each step is said once
    return [float(loss) for _, loss in found]
