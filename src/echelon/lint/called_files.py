"""Find the files that a script calls: other shell scripts, and the training script."""

from __future__ import annotations

import re

from echelon.lint.command import SHELLS
from echelon.lint.executed_commands import INERT
from echelon.lint.shell import parse

NAME = re.compile(r"(?:\.{1,2}/)*[\w][\w./-]*\.(?:sh|bash|slurm|py)|\./[\w./-]+")
MOST_BYTES = 1 << 16
MOST = 20
"""The most files that are looked for; a script calls few."""


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
    return list(called_paths)[:MOST]
