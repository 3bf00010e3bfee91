"""`echelon prove`: compare the training on several ranks with the training on one rank."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from echelon.cli import run_options
from echelon.cli.help import Help
from echelon.cli.options import OPTIONS as RUN_OPTIONS
from echelon.cli.options import Option
from echelon.cli.readers import whole
from echelon.cli.talk import say
from echelon.errors import UsageError
from echelon.host import Host
from echelon.orders.records import NOTHING
from echelon.orders.scale import KINDS
from echelon.units import step_time

_OF_RUN = ("module", "env", "launch", "timeout", "global_batch", "share_devices", "bind")
_LARGER_BATCH = ("per_device_batch", "scale_lr")
"""Options that the run on one device gets too, because it trains on the ranks' global batch."""
_SOME = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)
SCALES = (*KINDS, "off")
OPTIONS: tuple[Option, ...] = (
    Option(names=("-n", "--nproc-per-node"), value="N", help="the ranks to compare with one (default: 2)"),
    Option(names=("--steps",), value="K", help="the number of optimizer steps to compare (default: 50)"),
    Option(names=("--scale",), value="HOW[,HOW]", choices=SCALES, is_list=True,
           help=f"{', '.join(KINDS)}: scale; off: unchanged"),
    Option(names=("--plot",), value="FILE", takes="file", help="draw both curves into a PNG file"),
    Option(names=("--json",), help="print every number as JSON"),
    Option(names=("-h", "--help"), help="show this"),
    *(option for option in RUN_OPTIONS if option.key in _OF_RUN or option.trains),
)  # fmt: skip
HELP = Help(
    command="prove",
    usage=("[options] SCRIPT [args…]",),
    about="Run a script on one rank and on several; compare losses, gradients, optimizer states and parameters.\n"
    "A script for one device is scaled; a script that distributes itself runs unchanged.\n"
    "Exit code 0: equal, to the bit or within the rounding of this script; 1: not the same training, or nothing to\n"
    "compare.",
    operands=(Option(names=("SCRIPT",), takes="script"),),
    groups=(("options", OPTIONS),),
    example="echelon prove -n 4 --steps 50 train.py",
)


def main(arguments: list[str]) -> int:
    """Run the script on one rank, on one rank with reordered batches, and on several ranks; print the verdict."""
    scanned = HELP.scan(arguments)
    values = scanned.last
    if scanned.is_program or not scanned.rest:
        raise UsageError("echelon prove needs a script", hint="echelon prove -n 4 train.py")
    from echelon.trials import prove

    question = prove.ProofQuestion(
        options=scanned.words([option for option in RUN_OPTIONS if option.key in _OF_RUN]),
        options_of_several=scanned.words([option for option in RUN_OPTIONS if option.trains]),
        options_of_one=scanned.words([option for option in RUN_OPTIONS if option.key in _LARGER_BATCH]),
        script=scanned.rest[0],
        arguments=scanned.rest[1:],
        is_module="module" in values,
        num_ranks=whole(values.get("nproc_per_node", "2"), "-n", least=2, usual=2),
        num_steps=whole(values.get("steps", "50"), "--steps", least=1, usual=2),
        scales=_scales(values["scale"]) if "scale" in values else (),
    )
    if "plot" in values:
        prove.refuse_what_cannot_be_drawn(values["plot"])
    result = prove.prove(question, Host(), say)
    if "plot" in values:
        prove.draw(result, values["plot"])
        say(f"both curves are in {values['plot']}")
    if "json" in values:
        print(json.dumps(_finite({"format": 2, **result}), indent=1, allow_nan=False))
    else:
        for run in result["runs"]:
            _print(run, question.num_ranks, is_named=len(result["runs"]) > 1)
    return 0 if result["is_equal"] else 1


def _print(run: Mapping[str, Any], num_ranks: int, *, is_named: bool) -> None:
    if is_named:
        print(f"--scale {run['scale']}:")
    _print_steps(run.get("steps", []), num_ranks)
    if run["verdict"] == "FAILED":
        print(f"FAILED: {run['why']}" + (f"\n  hint: {run['hint']}" if run["hint"] else ""))
        return
    if run["is_wrong"]:
        print(f"WRONG from step {run['first_step']} on: {run['why']}")
        print(f"  {run['meaning']}")
        return
    if run["verdict"] == NOTHING:
        print(f"{NOTHING}: {run['why']}")
        print(f"  {run['meaning']}")
        return
    had = run["had"]
    sharded = f", {had['num_sharded']} of {had['num_parameters']} parameters sharded" if had["num_sharded"] else ""
    doubt = run.get("float64_decides")
    how = ", compared in float64" if doubt else ""
    print(f"{run['verdict']}: {len(run['steps'])} steps on {had['world_size']} ranks{sharded}{how}")
    if doubt:
        print(f"  in the script's own precision rounding alone changes this training: from step {doubt['from_step']}"
              f" on, {doubt['why']}")  # fmt: skip
    print(f"  compared: {', '.join(run['compared'])}; not compared: {', '.join(run['not_compared'])}")
    if run["tensors"]:
        _print_worst(run["tensors"])
    _print_speed(run["step_seconds"], had["world_size"])
    if not doubt and run["num_telling"] < len(run["steps"]):
        print(
            f"  only the first {run['num_telling']} steps are compared: after them rounding alone changes this training"
        )


def _print_worst(tensors: list[dict[str, Any]]) -> None:
    """Print the largest difference of a tensor; skip tensors that rounding alone moves, as a bias of attention keys."""
    telling = [row for row in tensors if row.get("tells", True)] or tensors
    worst = max(telling, key=lambda row: float(row["difference"]))
    names = {row["tensor"] for row in telling}
    print(f"  the worst of {len(names)} tensors differs by {worst['difference']:.1e}: "
          f"{worst['tensor']} in step {worst['step']}")  # fmt: skip
    noise = sorted({row["tensor"] for row in tensors} - names)
    if noise:
        print(f"  {len(noise)} more tensors cannot be compared: rounding alone changes them on one device too: "
            f"{', '.join(noise[:2])}"
              + (" …" if len(noise) > 2 else ""))  # fmt: skip


def _print_steps(steps: list[dict[str, Any]], num_ranks: int) -> None:
    if not steps:
        return
    wanted = {*_SOME, len(steps)}
    several = f"on {num_ranks}"
    print(f"{'step':>5}  {'loss on 1':>13}  {several:>13}  {'difference':>10}  {'rounding':>9}  {'gradient norm':>13}"
          f"  {'difference':>10}  {'rounding':>9}")  # fmt: skip
    for row in steps:
        if row["step"] in wanted:
            loss, norm = row["loss"], row["gradient_norm"]
            losses = f"{_number(loss['one'])}  {_number(loss['other'])}  {_gap(loss)}"
            print(f"{row['step']:>5}  {losses}  {_number(norm['one'])}  {_gap(norm)}")


def _print_speed(seconds: Mapping[str, float | None], num_ranks: int) -> None:
    single, several = seconds["one"], seconds["other"]
    if single is None or several is None:
        return  # too few steps, or steps that are too short
    ratio = f"{single / several:.1f} times as fast" if single >= several else f"{several / single:.1f} times as long"
    doubt = ""
    from echelon.trials.prove import MOST_GAIN

    if single > MOST_GAIN * num_ranks * several:
        doubt = f", which {num_ranks} ranks cannot explain: other work may have disturbed the run on 1"
    print(f"  a step takes {step_time(single)} on 1 rank and {step_time(several)} on {num_ranks}: {ratio}{doubt}")


def _number(value: float | None) -> str:
    return f"{'–':>13}" if value is None else f"{value:>13.7g}"


def _gap(figures: Mapping[str, float | None]) -> str:
    """Return the difference of two numbers and its bound; dashes where one is no number."""
    if not all(math.isfinite(figures[key] or 0.0) for key in ("one", "other")):
        return f"{'–':>10}  {'–':>9}"
    return f"{figures['difference']:>10.1e}  {figures['bound']:>9.1e}"


def _finite(value: Any) -> Any:
    """Return the value with null for infinite and undefined numbers, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _scales(text: str) -> tuple[str, ...]:
    scales = tuple(dict.fromkeys(text.split(",")))
    for scale in scales:
        if ":" in scale:
            run_options.scale({"scale": scale})
        elif scale not in SCALES:
            raise UsageError(
                f"--scale {scale or repr('')}: the choices are {', '.join(SCALES)}", hint="--scale data,fsdp"
            )
    if "off" in scales and len(scales) > 1:
        raise UsageError(
            f"--scale {text}: a script distributes itself (off) or echelon scales it "
            f"({', '.join(SCALES[:-1])}), not both",
            hint="--scale data,fsdp   or --scale off",
        )
    return scales
