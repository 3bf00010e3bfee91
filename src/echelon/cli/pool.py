"""`echelon pool`: keep what scripts import ready on the nodes of an allocation, between runs."""

from __future__ import annotations

import os
from typing import Any

from echelon.cli import readers
from echelon.cli.help import Help
from echelon.cli.options import Option, fields
from echelon.cli.talk import print_json, say
from echelon.errors import RunError, UsageError, seen
from echelon.host import Host
from echelon.units import aligned, counted, duration, size

ACTS = ("start", "status", "stop")
OPTIONS = (
    Option(names=("--idle",), value="TIME", fills="idle_seconds", reads=readers.seconds,
           help="start: end after so long without a run: 30m (default), 2h, or 90 (seconds)"),
    Option(names=("--json",), help="status: as JSON"),
    Option(names=("-h", "--help"), help="show this"),
)  # fmt: skip
HELP = Help(
    command="pool",
    usage=("start [options]", "status [--json]", "stop"),
    about="Keep what scripts import ready on the nodes of your Slurm allocation, or on this machine. A run that "
    "follows forks its ranks from it at once; nothing else of a run outlives it. A pool ends with the allocation, or "
    "after 30 minutes without a run.",
    operands=(Option(names=("ACT",), choices=ACTS, help="start, status or stop"),),
    groups=(("options", OPTIONS),),
    example="echelon pool start --idle 2h",
)


def main(arguments: list[str]) -> int:
    """Start, show or stop the pools; 1 if no node has a pool afterwards, and for `stop` if none had one."""
    scanned = HELP.scan_all(arguments)
    if len(scanned.rest) != 1 or scanned.rest[0] not in ACTS:
        asked = seen(" ".join(scanned.rest)) if scanned.rest else "nothing"
        raise UsageError(f"echelon pool {asked}: choose start, status or stop", hint="echelon pool start")
    act = scanned.rest[0]
    for option, its_act in (("idle", "start"), ("json", "status")):
        if option in scanned.values and act != its_act:
            raise UsageError(f"--{option} has no meaning for echelon pool {act}", hint=f"echelon pool {act}")
    from echelon.launch import pool

    host = Host()
    if act == "start":
        return _start(fields(scanned.values, OPTIONS).get("idle_seconds", pool.IDLE_SECONDS), host)
    answers = pool.ask(act, host)
    if act == "status" and "json" in scanned.values:
        print_json(nodes=answers)
    elif act == "status":
        print("\n".join(aligned(rows(answers))) if answers else "no pool: echelon pool start")
    else:
        say(f"the {_nodes(len(answers))} ended; runs go on" if answers else "there is no pool to stop")
    return 0 if answers else 1


def _start(idle_seconds: float, host: Host) -> int:
    from echelon.launch import pool

    said = pool.start(idle_seconds, host)
    num_ready = said.count("ready")
    for problem in sorted({line for line in said if line != "ready"}):
        say(problem)
    if not num_ready:
        raise RunError("no pool was started", hint="echelon pool status")
    say(f"{_nodes(num_ready)} started: each ends {duration(idle_seconds)} after its last run (echelon pool stop)")
    return 0


def _nodes(number: int) -> str:
    return "pool of this machine" if number == 1 else f"pools of {counted(number, 'node')}"


def rows(answers: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the table of `status`: a row for each program whose imports a node has ready."""
    table: list[tuple[str, ...]] = [("node", "up", "ends after", "runs", "memory", "imports of")]
    for answer in answers:
        left = duration(max(answer["idle_seconds"] - answer["unused_seconds"], 0.0))
        node = (answer["node"], duration(answer["seconds"]), left, str(answer["runs"]))
        templates = answer["templates"] or [None]
        table += [(*(node if number == 0 else ("", "", "", "")), *_of(one)) for number, one in enumerate(templates)]
    return table


def _of(template: dict[str, Any] | None) -> tuple[str, str]:
    if template is None:
        return "", "nothing yet"
    words = [os.path.basename(word) for word in template["argv"][1:]]
    state = "" if template["is_ready"] else ", importing"
    return size(template["own_bytes"]), f"{' '.join(words)} ({counted(template['runs'], 'run')}{state})"
