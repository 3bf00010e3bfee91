"""`echelon check`: what is wrong with this machine, or with the nodes of an allocation, before a run finds out."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.cli.resources import machine_names
from echelon.cli.talk import say
from echelon.errors import UsageError
from echelon.host import Host, terminal

if TYPE_CHECKING:
    from echelon.cli.nodes import Checked

OPTIONS: tuple[Option, ...] = (
    Option(names=("--fast",), help="read only facts that take under a second: no slow tools or tests between nodes"),
    Option(names=("-n", "--nproc-per-node"), value="N", help="the ranks each node will have (default: its devices)"),
    Option(names=("--collectives",), help="also measure all-reduce, and find the nodes that slow it down"),
    Option(names=("--reference",), value="GB/S", help="the bus bandwidth that --collectives should reach"),
    Option(names=("--keep",), help="keep the result of --collectives as this machine's reference for later checks"),
    Option(names=("--checkpoints",), value="DIR", takes="folder", help="the folder of the run's files (default: here)"),
    Option(names=("--machine",), value="NAME", choices=machine_names,
           help="compare with this machine (default: where you are)"),
    Option(names=("--deadline",), value="SECONDS", help="time limit of each part of a check (default: 15, --fast: 5)"),
    Option(names=("--exclude-bad",), help="print only --exclude=NODES for the bad nodes; the report goes to stderr"),
    Option(names=("--strict",), help="exit with code 1 for warnings too"),
    Option(names=("--json",), help="print the findings and all facts as JSON"),
    Option(names=("--list",), help="list every check, one a line"),
    Option(names=("-h", "--help"), help="show this"),
)  # fmt: skip
LONGEST_SECONDS = 3600
HELP = Help(
    command="check",
    about="Check this machine, or inside a Slurm allocation all its nodes through one step: devices, cores, "
    "memory, network, limits, software, caches. echelon repairs nothing.\n"
    "Exit code 0: no error; 1: an error was found; 2: an option is wrong.",
    groups=(("options", OPTIONS),),
    example="salloc --nodes=4 --gpus-per-node=8 echelon check",
)


def main(arguments: list[str]) -> int:
    scanned = HELP.scan_all(arguments)
    values = scanned.last
    if scanned.rest:
        word = scanned.rest[0]
        raise UsageError(f"echelon check takes no {word}: it checks nodes", hint=f"echelon lint {word}")
    if "list" in values:
        print("\n".join(listing()))
        return 0
    if "json" in values and "exclude_bad" in values:
        raise UsageError(
            "--json and --exclude-bad both write to standard output", hint='--json   lists these nodes under "exclude"'
        )
    from echelon.cli import nodes

    if "keep" in values and "collectives" not in values:
        raise UsageError("--keep needs --collectives, which measures the bandwidth", hint="--collectives --keep")
    if values.get("machine") == "":
        raise UsageError("--machine '': give the name of a machine", hint="echelon machines   lists them")
    question = nodes.NodeQuestion(
        level="fast" if "fast" in values else "full",
        ranks_per_node=_whole("-n", values["nproc_per_node"], 4096) if "nproc_per_node" in values else 0,
        checkpoints=_folder(values.get("checkpoints", os.getcwd())),
        machine=values.get("machine", ""),
        measures="collectives" in values,
        reference_bytes_per_second=_reference(values),
        keeps="keep" in values,
        part_seconds=float(_whole("--deadline", values["deadline"], LONGEST_SECONDS)) if "deadline" in values else 0.0,
    )
    checked = nodes.check(question, Host())
    _print(checked, values)
    failing = ("error", "warning") if "strict" in values else ("error",)
    return 1 if any(finding.severity in failing for finding in checked.findings) else 0


def _print(checked: Checked, values: dict[str, str]) -> None:
    from echelon.checks import collectives, report
    from echelon.environment.hostlist import compress

    if "json" in values:
        more: dict[str, Any] = {"collectives": dict(checked.sweep)} if checked.sweep else {}
        text = report.as_json(
            checked.surveys, checked.findings, exclude=checked.bad_nodes, seconds=checked.seconds, more=more
        )
        print(text)
        return
    stream = sys.stderr if "exclude_bad" in values else sys.stdout
    with_colour = terminal.has_colour(stream, os.environ)
    text = report.text(checked.surveys, checked.findings, seconds=checked.seconds, with_colour=with_colour)
    print(text, end="", file=stream)
    if checked.sweep:
        print("", *collectives.rows(checked.sweep), sep="\n", file=stream)
    if "exclude_bad" in values and checked.bad_nodes:
        print(f"--exclude={compress(checked.bad_nodes)}")
    elif checked.bad_nodes:
        say(f"leave these nodes out: --exclude={compress(checked.bad_nodes)}")


def listing() -> list[str]:
    from echelon.checks import collectives
    from echelon.checks.examine import COMPARISONS, OF_ONE

    named = [
        *((each.name, each.question) for each in (*OF_ONE, *COMPARISONS)),
        (collectives.NAME, collectives.QUESTION),
    ]
    return [f"{name:<14} {question}" for name, question in named]


def _whole(option: str, text: str, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= most:
        raise UsageError(f"{option} {text or repr('')}: give a whole number from 1 to {most}", hint=f"{option} 8")
    return int(text)


def _reference(values: dict[str, str]) -> float:
    if "reference" not in values:
        return 0.0
    text = values["reference"]
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,12})?", text) or float(text) <= 0:
        raise UsageError(f"--reference {text or repr('')}: give a number of GB/s", hint="--reference 85")
    if "collectives" not in values:
        raise UsageError(
            "--reference needs --collectives, which measures the bandwidth", hint=f"--collectives --reference {text}"
        )
    return float(text) * 1e9


def _folder(path: str) -> str:
    if not path or (os.path.exists(path) and not os.path.isdir(path)):
        raise UsageError(f"--checkpoints {path or repr('')}: give a folder", hint="--checkpoints checkpoints/")
    return path
