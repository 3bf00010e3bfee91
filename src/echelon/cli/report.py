"""`echelon report`: what a run used, where its time went, and what would help; or two runs side by side."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

from echelon.cli.help import Help
from echelon.cli.options import Option, scan_all
from echelon.cli.talk import print_help, print_table
from echelon.errors import UsageError

OPTIONS: tuple[Option, ...] = (
    Option(names=("--json",), help="as JSON"),
    Option(names=("-h", "--help"), help="show this"),
)
HELP = Help(
    command="report",
    usage=("[options] [RUN]", "[options] RUN RUN"),
    about="Say what a run used, where its time went, how long its steps took, and what would help.\n"
    "Without RUN it is the newest run of this folder. Two runs are compared.",
    operands=(Option(names=("RUN",), takes="run"),),
    groups=(("options", OPTIONS),),
    example="echelon report train-8f65",
)
MOST_RUNS = 2


def main(arguments: list[str]) -> int:
    """Report on one run, or compare two."""
    scanned = scan_all(arguments, OPTIONS, command="report")
    if "help" in scanned.values:
        print_help(HELP.text())
        return 0
    from echelon.launch import runs
    from echelon.launch.runs import RUNNING
    from echelon.monitor import account, advice, recorded, report

    if len(scanned.rest) > MOST_RUNS:
        raise UsageError(f"a report is of one run or of two, not of {len(scanned.rest)}", hint="echelon report RUN RUN")
    paths = [runs.find(name) for name in scanned.rest] or runs.all_runs()[-1:]
    if not paths:
        raise UsageError("echelon-runs/ of this folder has no runs", hint="echelon report DIRECTORY-OF-A-RUN")
    states = [runs.read(path).state for path in paths]
    records = [recorded.read(path) for path in paths]
    accounts = [
        account.of_run(record, time.time() if state == RUNNING else None)
        for record, state in zip(records, states, strict=True)
    ]
    names = [runs.short_name(path) for path in paths]
    if "json" in scanned.values:
        fields = [
            {"name": name, "path": record.path, "state": state, **asdict(run), "advice": advice.advise(record, run)}
            for name, record, state, run in zip(names, records, states, accounts, strict=True)
        ]
        print(json.dumps({"format": 1, "runs": fields}, indent=1))
    elif len(paths) == MOST_RUNS:
        print_table(report.comparison((names[0], names[1]), (accounts[0], accounts[1])))
    else:
        earlier = [account.of_run(recorded.read(path)) for path in recorded.earlier_jobs(paths[0])]
        advised = advice.advise(records[0], accounts[0])
        print_table(report.text(names[0], states[0], records[0], accounts[0], advised, earlier))
    return 0
