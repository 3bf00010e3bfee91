"""`echelon runs`: list the runs of this folder, with their state and their size on disk."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.cli.talk import print_json, print_table
from echelon.units import aligned, duration, size

if TYPE_CHECKING:
    from echelon.launch.runs import RunSummary

OPTIONS: tuple[Option, ...] = (
    Option(names=("--json",), help="as JSON"),
    Option(names=("-h", "--help"), help="show this"),
)
HELP = Help(
    command="runs",
    usage=("[options] [RUN…]",),
    about="List the runs of this folder: name, state, start, duration, ranks, size on disk.\n"
    "Name a run by its directory, by its name in the last line of the run, or by a part of it.",
    operands=(Option(names=("RUN",), takes="run"),),
    groups=(("options", OPTIONS),),
    example="echelon runs train-8f65",
)


def main(arguments: list[str]) -> int:
    scanned = HELP.scan_all(arguments)
    from echelon.launch import runs

    listed = [runs.read(path) for path in map(runs.find, scanned.rest)] or [runs.read(path) for path in runs.all_runs()]
    if "json" in scanned.values:
        print_json(runs=[{"name": run.name, **asdict(run)} for run in listed])
    elif listed:
        print_table(table(listed))
        for run in listed if scanned.rest else ():
            print(f"logs of {run.name}: {os.path.join(run.path, 'logs')}")
    else:
        print("echelon-runs/ of this folder has no runs")
    return 0


def table(runs: list[RunSummary]) -> str:
    lines = [("run", "state", "began", "took", "ranks", "size")]
    for run in runs:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.began))
        took = duration(run.seconds) if run.seconds is not None else "–"
        lines.append((run.name, run.state, began, took, str(run.num_ranks or "–"), size(run.num_bytes)))
    return "\n".join(aligned(lines))
