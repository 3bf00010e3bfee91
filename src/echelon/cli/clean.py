"""`echelon clean`: remove run directories that nobody needs any more."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from echelon import units
from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.cli.talk import say
from echelon.environment import digits
from echelon.errors import UsageError

if TYPE_CHECKING:
    from echelon.launch.runs import RunSummary

OPTIONS: tuple[Option, ...] = (
    Option(names=("--older-than",), value="TIME", help="remove runs that began longer ago than 12h, 7d …"),
    Option(names=("--keep",), value="N", help="keep the newest N runs, and remove all others"),
    Option(names=("--with-files",), help="also remove runs that hold files of yours, such as checkpoints"),
    Option(names=("--dry-run",), help="list the runs that it would remove, and remove nothing"),
    Option(names=("-h", "--help"), help="show this"),
)
HELP = Help(
    command="clean",
    usage=("[options] [RUN…]",),
    about="Remove run directories of this folder. Runs that still run or wait in a queue stay.\n"
    "Runs that hold files which echelon has not written stay too.",
    operands=(Option(names=("RUN",), takes="run"),),
    groups=(("options", OPTIONS),),
    example="echelon clean --older-than 7d --dry-run",
)


def main(arguments: list[str]) -> int:
    scanned = HELP.scan_all(arguments)
    values = scanned.last
    if not scanned.rest and "older_than" not in values and "keep" not in values:
        raise UsageError(
            "echelon clean needs the names or the age of runs to remove", hint="echelon clean --older-than 7d"
        )
    from echelon.launch import runs

    chosen = [runs.read(path) for path in map(runs.find, scanned.rest)] if scanned.rest else []
    for run in chosen:
        why = _why_kept(run, values)
        if why:
            raise UsageError(f"{run.name} is not removed: {why[0]}", hint=why[1])
    if not scanned.rest:
        chosen = _old(values)
    num_bytes = 0
    for run in chosen:
        why = _why_kept(run, values)
        if why:
            say(f"kept {run.name}: {why[0]}")
            continue
        num_bytes += run.num_bytes
        print(run.path)
        if "dry_run" not in values:
            try:
                shutil.rmtree(run.path)
            except OSError as error:
                raise UsageError(
                    f"echelon cannot remove {run.path}: {error.strerror}",
                    hint=f"ls -la {run.path}   shows what is left",
                ) from None
    say(f"{'would free' if 'dry_run' in values else 'freed'} {units.size(num_bytes)}")
    return 0


def _old(values: Mapping[str, str]) -> list[RunSummary]:
    from echelon.launch import runs

    paths = runs.all_runs()
    if "keep" in values:
        if not digits.is_number(values["keep"]):
            raise UsageError(f"--keep {values['keep'] or repr('')}: give the number of runs to keep", hint="--keep 10")
        paths = paths[: max(0, len(paths) - int(values["keep"]))]
    candidates = [runs.read(path) for path in paths]
    if "older_than" in values:
        seconds = units.minutes(values["older_than"], option="--older-than") * 60
        candidates = [run for run in candidates if time.time() - run.began > seconds]
    return candidates


def _why_kept(run: RunSummary, values: Mapping[str, str]) -> tuple[str, str] | None:
    """Return why a run must stay, and the way out; None if it can be removed."""
    if not run.is_over:
        return f"it is {run.state}", "echelon runs"
    if run.foreign and "with_files" not in values:
        files = ", ".join(run.foreign[:3])
        return f"it holds {files}, which echelon has not written", f"echelon clean --with-files {run.name}"
    return None
