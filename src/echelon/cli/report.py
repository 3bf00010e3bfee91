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
    from echelon.monitor import account, advice, recorded, report

    if len(scanned.rest) > MOST_RUNS:
        raise UsageError(f"a report is of one run or of two, not of {len(scanned.rest)}", hint="echelon report RUN RUN")
    paths = [runs.find(name) for name in scanned.rest] or runs.all_runs()[-1:]
    if not paths:
        raise UsageError("echelon-runs/ of this folder has no runs", hint="echelon report DIRECTORY-OF-A-RUN")
    found = [recorded.read(path) for path in paths]
    accounts = [account.account(each, time.time()) for each in found]
    names = [runs.short_name(path) for path in paths]
    if "json" in scanned.values:
        fields = [
            {"name": name, "path": each.path, **asdict(one), "advice": advice.advise(each, one)}
            for name, each, one in zip(names, found, accounts, strict=True)
        ]
        print(json.dumps({"format": 1, "runs": fields}, indent=1))
    elif len(paths) == MOST_RUNS:
        print_table(report.comparison((names[0], names[1]), (accounts[0], accounts[1])))
    else:
        earlier = [account.account(each, time.time()) for each in map(recorded.read, recorded.earlier(paths[0]))]
        state, advised = runs.read(paths[0]).state, advice.advise(found[0], accounts[0])
        print_table(report.text(names[0], state, found[0], accounts[0], advised, earlier))
    return 0
