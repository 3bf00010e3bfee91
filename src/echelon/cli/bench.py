"""`echelon bench`: measure how a script scales, how fast ranks exchange data, and how long a start takes."""

from __future__ import annotations

from importlib import import_module

from echelon.cli import bench_network, bench_scaling, bench_start
from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.cli.talk import print_help
from echelon.errors import UsageError

VERBS = {
    "scaling": "run a script on several numbers of ranks, and say how well it scales",
    "network": "measure how fast ranks exchange data, by operation and size",
    "start": "measure the time from the command to the first line of a script, and to the first all-reduce",
}
HELP = Help(
    command="bench",
    usage=("scaling [options] SCRIPT [args…]", "scaling --read DIRECTORY", "network [options]", "start [options]"),
    about="Measure how a script scales, how fast ranks exchange data, and how long a start takes.\n"
    "Runs are started here, or in the allocation of this command, one after the other.\n"
    "Exit code 0: all was measured; 1: a size failed, or a result was wrong; 2: an option is wrong.",
    operands=tuple(
        Option(names=(verb,), choices=tuple(VERBS) if not place else (), help=what)
        for place, (verb, what) in enumerate(VERBS.items())
    ),
    groups=(
        ("options of scaling", bench_scaling.OWN),
        ("with --submit, as in echelon submit", bench_scaling.OF_SUBMIT),
        ("as in echelon run", bench_scaling.OF_RUN),
        ("options of network, beside --plot and --json", bench_network.OPTIONS),
        ("options of start, beside --json and those of echelon run", bench_start.OWN[:2]),
    ),
    example="echelon bench scaling --ranks 1,2,4,8 --plot scaling train.py",
)


def main(arguments: list[str]) -> int:
    verb, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if verb in ("-h", "--help"):
        print_help(HELP.text())
        return 0
    if verb not in VERBS:
        asked = f"echelon bench has no command {verb!r}" if verb else "echelon bench needs a command"
        raise UsageError(f"{asked}: the commands are {', '.join(VERBS)}", hint="echelon bench scaling train.py")
    return int(import_module(f"echelon.cli.bench_{verb}").main(rest, HELP))
