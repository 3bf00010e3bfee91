"""`echelon bench start`: how long a start takes."""

from __future__ import annotations

import json

from echelon.cli.help import Help
from echelon.cli.options import OPTIONS as RUN_OPTIONS
from echelon.cli.options import Option
from echelon.cli.readers import whole
from echelon.cli.talk import print_table, say
from echelon.errors import UsageError
from echelon.host import Host

COMMAND = "bench start"
OWN: tuple[Option, ...] = (
    Option(names=("--ranks",), value="N[,N]", help="the numbers of ranks (default: 1, 2, 4 … up to the devices here)"),
    Option(names=("--repeat",), value="R", help="start each size R times (default: 1)"),
    Option(names=("--json",), help="print all numbers as JSON"),
    Option(names=("-h", "--help"), help="show this"),
)
OPTIONS = (*OWN, *(option for option in RUN_OPTIONS if option.key in ("launch", "share_devices", "env")))


def main(arguments: list[str], of_bench: Help) -> int:
    scanned = of_bench.scan_all(arguments, OPTIONS, command=COMMAND)
    values = scanned.last
    if scanned.rest:
        raise UsageError(
            f"echelon bench start takes no {scanned.rest[0]}: it starts a small program of its own",
            hint="echelon bench start --ranks 1,2,4",
        )
    num_repeats = whole(values.get("repeat", "1"), "--repeat", least=1, usual=3)
    from echelon.launch.run_directory import shared_folder
    from echelon.trials import question, start

    host, options = Host(), scanned.words(OPTIONS[len(OWN) :])
    asked = question.parse(values["ranks"], fewest=1) if "ranks" in values else ()
    plan = start.plan_of(options, host)
    placed = question.place(plan, asked or question.usual(plan), shares_devices="share_devices" in values)
    start.refuse_what_cannot_run(placed, options, host)
    with shared_folder("bench", "the runs write there") as folder:
        starts = list(
            start.measure(placed, num_repeats=num_repeats, options=options, host=host, say=say, folder=folder)
        )
    if "json" in values:
        print(json.dumps(start.as_plain(starts), indent=1))
    else:
        print_table(start.text(starts))
    return 0
