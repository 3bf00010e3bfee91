"""`echelon profile`: what a step waits for, from the traces of profiled ranks."""

from __future__ import annotations

import json
from collections.abc import Sequence

from echelon.cli.help import Help
from echelon.cli.options import Option, scan_all
from echelon.cli.talk import print_help, print_table
from echelon.errors import UsageError

OPTIONS: tuple[Option, ...] = (
    Option(names=("--read",), help="judge these traces, which torch.profiler wrote: .json or .json.gz"),
    Option(names=("--json",), help="print the verdict as JSON"),
    Option(names=("-h", "--help"), help="show this"),
)
HELP = Help(
    command="profile",
    usage=("--read [--json] TRACE…",),
    about="Say what a step waits for: input, compute, communication, the optimizer, launches, copies or nothing.\n"
    "With one trace of each rank it names the rank that makes the others wait.",
    operands=(Option(names=("TRACE",), takes="file"),),
    groups=(("options", OPTIONS),),
    example="echelon profile --read trace.json.gz",
)


def main(arguments: list[str]) -> int:
    """Judge traces."""
    scanned = scan_all(arguments, OPTIONS, command="profile")
    if "help" in scanned.values:
        print_help(HELP.text())
        return 0
    if not scanned.rest:
        raise UsageError("the command line names no trace", hint="echelon profile --read trace.json.gz")
    if "read" not in scanned.values:
        raise UsageError(
            f"{scanned.rest[0]}: a trace is read with --read", hint=f"echelon profile --read {scanned.rest[0]}"
        )
    judge(scanned.rest, as_json="json" in scanned.values)
    return 0


def judge(paths: Sequence[str], *, as_json: bool) -> None:
    """Print the verdict on traces; raise UsageError for a file that is none."""
    from echelon.monitor.traces import report, verdict

    verdicts = [verdict.of(path) for path in paths]
    if as_json:
        print(json.dumps(report.as_plain(verdicts), indent=1))
    else:
        print_table(report.text(verdicts))
