"""`echelon prove`: is the training on several ranks the same as on one?"""

from __future__ import annotations

import json
import re
from typing import Any

from echelon.cli.options import OPTIONS as RUN_OPTIONS
from echelon.cli.options import Option, rows, scan
from echelon.cli.resources import say
from echelon.errors import UsageError

OPTIONS: tuple[Option, ...] = (
    Option(names=("-n", "--nproc-per-node"), value="N", help="the ranks to compare with one (default: 2)"),
    Option(names=("--steps",), value="K", help="optimizer steps that are compared (default: 50)"),
    Option(names=("--json",), help="every figure, as JSON"),
    Option(names=("-h", "--help"), help="show this"),
    *(option for option in RUN_OPTIONS if option.key in ("module", "env", "launch", "timeout")),
)


def main(arguments: list[str]) -> int:
    """Run the script on one rank, on one with its batches reordered, and on several; print the verdict."""
    scanned = scan(arguments, OPTIONS, command="prove")
    values = {key: found[-1] for key, found in scanned.values.items()}
    if "help" in values:
        print(help_text(), end="")
        return 0
    if scanned.is_program or not scanned.rest:
        raise UsageError("no script was given", hint="echelon prove -n 4 train.py")
    from echelon.host import Host
    from echelon.launch import prove

    num_ranks = _whole(values.get("nproc_per_node", "2"), "-n", least=2)
    words = ["-m"] if "module" in scanned.values else []
    for key in ("env", "launch", "timeout"):
        words += [word for value in scanned.values.get(key, ()) for word in (f"--{key}", value)]
    result = prove.prove(
        [*words, *scanned.rest],
        num_ranks=num_ranks,
        num_steps=_whole(values.get("steps", "50"), "--steps", least=1),
        host=Host(),
        say=say,
    )
    if "json" in values:
        print(json.dumps({"format": 1, **result}, indent=1))
    else:
        _print(result, num_ranks)
    return 1 if result["is_wrong"] else 0


def _print(result: dict[str, Any], num_ranks: int) -> None:
    steps = result["steps"]
    if steps:
        print(f"{'step':>5}  {'loss on 1':>13}  {'on ' + str(num_ranks):>13}  {'difference':>10}  {'rounding':>9}")
        for row in _some(steps):
            loss = row["loss"]
            print(
                f"{row['step']:>5}  {loss['one']:>13.7g}  {loss['other']:>13.7g}  {loss['difference']:>10.1e}  "
                f"{loss['bound']:>9.1e}"
            )
    if result["is_wrong"]:
        print(f"WRONG from step {result['first_step']} on: {result['why']}")
        print(f"  {result['meaning']}")
        return
    worst = max((row["difference"] for row in result["tensors"]), default=0.0)
    count = f"{len(steps)} steps, {len(result['tensors'])} tensors"
    print(f"{result['verdict']}: {count}, the worst differs by {worst:.1e}")


def _some(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a few steps of many: the first ones, and then ever fewer."""
    wanted = {1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, len(steps)}
    return [row for row in steps if row["step"] in wanted]


def _whole(text: str, option: str, *, least: int) -> int:
    if not re.fullmatch(r"\d{1,6}", text) or int(text) < least:
        shown = text or repr("")
        raise UsageError(
            f"{option} {shown}: a whole number of at least {least} is wanted", hint=f"{option} {max(least, 2)}"
        )
    return int(text)


def help_text() -> str:
    """Return the help of the command."""
    return "\n".join(
        [
            "usage: echelon prove [options] SCRIPT [args…]",
            "",
            "Run a script for one device on one rank and, scaled, on several; compare losses, gradients and weights.",
            "Exit code 0: equal, to the bit or within the rounding of this very script; 1: not the same training.",
            "",
            "options:",
            *rows(OPTIONS),
            "",
            "example:",
            "  echelon prove -n 4 --steps 50 train.py",
            "",
        ]
    )
