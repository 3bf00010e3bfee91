"""`%%echelon` in IPython and Jupyter: the cell is a script that runs as every rank."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

from echelon.cli.options import OPTIONS, Option, scan
from echelon.errors import EchelonError, UsageError
from echelon.host import Host
from echelon.launch import pool
from echelon.node import pool_place
from echelon.notebook import ranks
from echelon.scheduler.slurm import allocation

FETCH = Option(names=("--fetch",), value="NAMES", help="give the notebook these variables of rank 0 when the cell ends")
_READY = "ready"


def load(shell: Any) -> None:
    """Teach an IPython shell the magic."""
    shell.register_magic_function(lambda line, cell: run_cell(shell, line, cell), "cell", "echelon")


def run_cell(shell: Any, line: str, cell: str) -> None:
    """Run a cell with the options of its first line, and put what was fetched into the notebook's variables."""
    try:
        options, arguments, names = read(line)
        _keep_imports(options)
        text = f"# %%echelon {line}\n{cell}"  # its lines have the numbers that the notebook shows
        shell.push(ranks.run(text, options, arguments, names))
    except ranks.RanksFailed:
        raise
    except EchelonError as error:
        hint = f"\n  hint: {error.hint}" if error.hint else ""
        raise CellRefused(f"echelon: error: {error.message}{hint}") from None


class CellRefused(Exception):
    """A cell did not run; IPython shows the message alone."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def read(line: str) -> tuple[list[str], list[str], list[str]]:
    """Return the options of `echelon run`, the arguments of the cell, which come after --, and the names to fetch.

    >>> read("-n 4 --fetch loss,model -- --lr 0.1")
    (['--nproc-per-node', '4'], ['--lr', '0.1'], ['loss', 'model'])
    """
    try:
        scanned = scan(shlex.split(line), [*OPTIONS, FETCH], command="run")
    except ValueError as error:  # of shlex: a quotation mark is missing
        raise UsageError(f"%%echelon {line}: {error}", hint="%%echelon -n 4") from None
    if (scanned.rest and not scanned.is_program) or "module" in scanned.values:
        word = scanned.rest[0] if scanned.rest else "-m"
        raise UsageError(
            f"%%echelon {line}: the cell is the script, and {word!r} is none of its options",
            hint=f"%%echelon -n 4 -- {word}",
        )
    names = [name.strip() for text in scanned.values.get("fetch", ()) for name in text.split(",")]
    wrong = [name for name in names if not name.isidentifier()]
    if wrong:
        raise UsageError(f"--fetch {wrong[0]!r}: not a variable", hint="%%echelon -n 4 --fetch loss,model")
    return list(scanned.words(OPTIONS)), list(scanned.rest), names


def _keep_imports(options: list[str]) -> None:
    """Start the pool of this kernel's node if there is none, so that later cells start at once; say where they run."""
    if "--no-pool" in options or pool_place.ask(pool_place.folder(os.environ), {"kind": "status"}) is not None:
        return
    if _READY in pool.start(pool.IDLE_SECONDS, Host()):
        sys.stdout.write("echelon: keeps what cells import ready for later cells (echelon pool stop, --no-pool)\n")
    if allocation.is_outside(os.environ):
        sys.stdout.write(
            "echelon: note: this kernel is in no job of Slurm: its cells run on this node alone, which may be a login "
            "node. Start the notebook in a job: by the form of Open OnDemand, or with salloc and jupyter lab\n"
        )
