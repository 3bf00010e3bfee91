"""`echelon rehearse`: let things go wrong in a scratch copy, and say whether the training survives them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from echelon.cli.help import Help
from echelon.cli.options import OPTIONS as RUN_OPTIONS
from echelon.cli.options import Option, Scanned
from echelon.cli.readers import whole
from echelon.cli.talk import print_json, say
from echelon.errors import UsageError
from echelon.host import Host, terminal
from echelon.orders import rehearsal
from echelon.units import counted

if TYPE_CHECKING:
    from echelon.trials.rehearsal_verdict import RehearsalVerdict

_OF_RUN = (
    "nproc_per_node", "nnodes", "spares", "module", "env", "launch", "timeout", "global_batch", "share_devices", "bind",
    "hang_timeout", "max_restarts", "scale", "same_random", "no_check",
)  # fmt: skip
STEPS = 20
OPTIONS: tuple[Option, ...] = (
    Option(names=("--faults",), value="KIND[,KIND]", choices=rehearsal.KINDS, is_list=True,
           help="what goes wrong, one run each (default: all)"),
    Option(names=("--steps",), value="K", help="the number of optimizer steps of each run (default: 20)"),
    Option(names=("--seed",), value="S", help="draws the rank, the step and the moment of each fault (default: 0)"),
    Option(names=("--step",), value="RUN:STEP", help="run this step of a run again, and name what in it is not finite"),
    Option(names=("--debug",), help="with --step: open a debugger where the output of a module is not finite"),
    Option(names=("--json",), help="print the verdicts, or what was seen, as JSON"),
    Option(names=("-h", "--help"), help="show this"),
    *(option for option in RUN_OPTIONS if option.key in _OF_RUN or option.trains),
)  # fmt: skip
HELP = Help(
    command="rehearse",
    usage=("[options] SCRIPT [args…]", "--step RUN:STEP [--debug]"),
    about="Run a script for some steps in a scratch copy of this folder, and let one thing go wrong in each run.\n"
    "Each verdict says whether the training goes on, how many steps are computed again, and whether the weights\n"
    "are those of an undisturbed run.\n"
    "Exit code 0: it survives all faults; 1: it does not.",
    operands=(Option(names=("SCRIPT",), takes="script"),),
    groups=(("options", OPTIONS),),
    example="echelon rehearse -n 4 train.py",
)


def main(arguments: list[str]) -> int:
    scanned = HELP.scan(arguments)
    values = scanned.last
    if "step" in values:
        return _one_step(scanned, values)
    if "debug" in values:
        raise UsageError("--debug is for one step of a run", hint="echelon rehearse --step RUN:STEP --debug")
    if scanned.is_program or not scanned.rest:
        raise UsageError("echelon rehearse needs a script", hint="echelon rehearse -n 4 train.py")
    from echelon.launch.run_directory import shared_folder
    from echelon.trials import rehearse

    question, host = _question(scanned, values), Host()
    rehearse.refuse_what_cannot_run(question, host)
    verdicts: list[RehearsalVerdict] = []
    with shared_folder("rehearsal", "the copies of it are made there") as folder:
        rehearsing = rehearse.Rehearsing(question, host, say, folder)
        known = rehearsing.begin()
        say(f"undisturbed: {known.num_steps} steps on {counted(known.num_ranks, 'rank')} in {known.seconds:.1f} s")
        for verdict in rehearsing.verdicts(known):
            verdicts.append(verdict)
            if "json" not in values:
                print(_row(verdict), flush=True)
    if "json" in values:
        rows = [verdict.as_plain() for verdict in verdicts]
        print_json(ranks=known.num_ranks, steps=known.num_steps, faults=rows)
    return 0 if all(verdict.survives for verdict in verdicts) else 1


def _one_step(scanned: Scanned, values: dict[str, str]) -> int:
    """Run one step of a run once more; return 1 if the run has said that it is bad, and it is not any more."""
    from echelon.launch.run_directory import shared_folder
    from echelon.trials import one_step

    more = [*(f"--{key.replace('_', '-')}" for key in values if key not in ("step", "debug", "json")), *scanned.rest]
    if more:
        raise UsageError(
            f"--step runs a step as its run did, and {more[0]} would change it",
            hint=f"echelon rehearse --step {values['step']}",
        )
    question = one_step.read(values["step"])
    is_bad = question.note is not None and question.note["fact"] == "value not finite"
    if "debug" in values and not (terminal.is_terminal(sys.stdin) and terminal.is_terminal(sys.stdout)):
        raise UsageError("--debug needs a terminal", hint=f"echelon rehearse --step {values['step']}")
    debugged = (int(question.note["rank"]) if question.note is not None else 0) if "debug" in values else -1
    with shared_folder("rehearsal", "the copy of it is made there") as folder:
        rehearsed = one_step.Rehearsed(question, Host(), folder)
        seen = rehearsed.run(debugged)
    place = f"continued after step {rehearsed.begin}" if rehearsed.begin else "from the begin of the script"
    say(f"step {question.step} of {question.name}, {place}, on {counted(question.num_ranks, 'rank')}")
    if "json" in values:
        print_json(step=question.step, ranks=[seen[rank] for rank in sorted(seen)])
    else:
        print("\n".join(one_step.lines(seen)))
    if is_bad and not any(map(one_step.is_bad, seen.values())):
        say("the step was not finite in the run, and it is now: the script draws or reads something else in each run")
        return 1
    return 0


def _question(scanned: Scanned, values: dict[str, str]) -> Any:
    from echelon.script import distributes
    from echelon.trials import own_runs, rehearse
    from echelon.trials.rehearse import LEAST_STEPS, RehearsalQuestion

    imports = own_runs.imports_of(scanned.rest[0], is_module="module" in values, command="rehearse")
    is_own = bool(distributes.how(imports))
    if is_own and values.get("scale", "off") not in ("off", "auto"):
        raise UsageError(
            f"--scale {values['scale']} is for a script for one device, but {scanned.rest[0]} distributes itself",
            hint=f"remove --scale {values['scale']}",
        )
    is_saved = not is_own or distributes.saves_with_echelon(imports)
    possible = rehearsal.KINDS if is_saved else rehearse.OF_ANY_SCRIPT
    if is_own and "steps" in values:
        raise UsageError(
            f"--steps is for a script that echelon scales, but {scanned.rest[0]} distributes itself, "
            "and runs to its end",
            hint="remove --steps, and give the script arguments for a short training",
        )
    return RehearsalQuestion(
        options=scanned.words([option for option in OPTIONS if option in RUN_OPTIONS]),
        script=scanned.rest[0],
        arguments=scanned.rest[1:],
        is_module="module" in values,
        is_own=is_own,
        is_saved=is_saved,
        num_steps=whole(values.get("steps", str(STEPS)), "--steps", least=LEAST_STEPS, usual=STEPS),
        kinds=_kinds(values["faults"], possible, scanned.rest[0]) if "faults" in values else possible,
        seed=whole(values.get("seed", "0"), "--seed", least=0, usual=STEPS),
    )


def _kinds(text: str, possible: Sequence[str], script: str) -> tuple[str, ...]:
    kinds = tuple(dict.fromkeys(text.split(",")))
    for kind in kinds:
        if kind not in rehearsal.KINDS:
            raise UsageError(
                f"--faults {kind or repr('')}: the choices are {', '.join(rehearsal.KINDS)}",
                hint=f"--faults {','.join(possible[:2])}",
            )
        if kind not in possible:
            raise UsageError(
                f"--faults {kind}: {script} distributes itself, and this fault is for checkpoints of echelon; "
                f"the choices are {', '.join(possible)}",
                hint=f"--faults {','.join(possible[:2])}",
            )
    return kinds


def _row(verdict: RehearsalVerdict) -> str:
    where = f"rank {verdict.fault.rank}, step {verdict.struck_at or verdict.fault.step}"
    return f"{verdict.fault.kind:<20} {where:<18} {verdict.text()}"
