"""The command line of `echelon sweep`: its options, and the values that they make of them."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from echelon.cli.help import Help
from echelon.cli.options import OPTIONS as RUN_OPTIONS
from echelon.cli.options import Option, Scanned
from echelon.cli.readers import one_of, whole
from echelon.errors import UsageError
from echelon.spec import RUNS

if TYPE_CHECKING:
    from echelon.trials.sweep.record import SweepQuestion
    from echelon.trials.sweep.source import ListedTrials
    from echelon.trials.sweep.trial import SweepTrial

_NOT_FROM_RUN = (
    "nproc_per_node", "nnodes", "hosts", "spares", "show", "debug", "run_dir", "dry_run", "explain_hooks", "json",
    "tee", "resume", "share_devices", "help", "exclude_bad", "node_rank", "master_addr", "master_port", "rdzv_endpoint",
)  # fmt: skip
SAMPLERS, STOPS = ("grid", "random", "optuna"), ("median",)
MOST_SLOTS = 1024
OPTIONS: tuple[Option, ...] = (
    Option(names=("-p", "--parameter"), value="KEY=VALUES",
           help="values of {KEY}: 1e-3,3e-4; 64:1024:log2; 0:9; 0:1:0.25; 1e-5:1e-2:log; may be repeated"),
    Option(names=("--gpus-per-run",), value="N", help="the devices of each run, on one node (default: 1)"),
    Option(names=("--ranks-per-run",), value="N", help="on nodes without devices: the ranks of each run (default: 1)"),
    Option(names=("--slots",), value="N", help="runs side by side on each node (default: as its devices allow, or 1)"),
    Option(names=("--samples",), value="N", help="the number of trials to draw (default: all combinations)"),
    Option(names=("--sampler",), value="HOW", choices=SAMPLERS,
           help="grid: all combinations; random (default with --samples); optuna: what Optuna suggests"),
    Option(names=("--seed",), value="S", help="draws the values (default: 0)"),
    Option(names=("--metric",), value="NAME",
           help="compare by this number, which the script prints (default: the training loss, which echelon measures)"),
    Option(names=("--maximize",), help="larger is better (default: smaller)"),
    Option(names=("--stop",), value="RULE", choices=STOPS,
           help="median: stop a trial that is worse than the median of those that came as far"),
    Option(names=("--out",), value="DIR", takes="folder",
           help="the folder of the sweep (default: a new one in echelon-runs/); the same line again goes on"),
    Option(names=("--resume",), value="DIR", takes="folder", help="run the trials of a sweep that have no result yet"),
    Option(names=("--json",), help="print JSON in place of the table"),
    Option(names=("-h", "--help"), help="show this"),
)  # fmt: skip
OF_RUN = tuple(option for option in RUN_OPTIONS if option.key not in _NOT_FROM_RUN and not option.no_meaning)
_LINE = "-p lr=1e-3,3e-4 -p width=64:1024:log2 -- train.py --lr {lr} --width {width}"
HELP = Help(
    command="sweep",
    usage=("-p KEY=VALUES [options] [--] SCRIPT [args…]", "--resume DIR"),
    about="Run a script with each combination of values, several runs side by side on the devices of this machine or "
    "allocation, and compare them.\n"
    "{KEY} in the arguments stands for a value, and ECHELON_SWEEP_KEY has it in the ranks; {trial} is the number of "
    "the trial, {folder} its run directory.\n"
    "Exit code 0: at least one trial ended well; else that of the first failure.",
    operands=(Option(names=("SCRIPT",), takes="script"),),
    groups=(("options", OPTIONS), ("as in echelon run", OF_RUN)),
    example=f"echelon sweep --gpus-per-run 2 {_LINE}",
)


def opened(arguments: list[str], scanned: Scanned) -> tuple[list[str], Scanned, list[SweepTrial]]:
    """Return the command line that began the sweep, its options now, and its trials so far: none if it is new.

    Raise UsageError where this command line goes on with another sweep.
    """
    from echelon.trials.sweep import record

    folder, resumes = scanned.last.get("resume") or scanned.last.get("out", ""), "resume" in scanned.values
    if resumes:
        _refuse_beside_resume(scanned)
    if not resumes and not (folder and os.path.exists(os.path.join(folder, record.NAME))):
        return arguments, scanned, []
    earlier, trials = record.read(folder)
    if not resumes and earlier != arguments:
        raise UsageError(
            f"--out {folder} has a sweep with another command line: {shlex.join(earlier)}",
            hint=f"--out {folder.rstrip('/')}-2   or echelon sweep --resume {folder}",
        )
    before = HELP.scan(earlier)
    return earlier, replace(before, values={**before.values, **scanned.values, "out": [folder]}), trials


def asked(values: Mapping[str, str]) -> tuple[int, int, int]:
    """Return the devices and ranks of each run, and the runs of each node; 0: the default."""
    return _number(values, "gpus_per_run"), _number(values, "ranks_per_run"), _number(values, "slots")


def question_of(scanned: Scanned, arguments: Sequence[str]) -> SweepQuestion:
    """Return what the command line asks; raise UsageError for words that are wrong on every machine."""
    if not scanned.rest or "parameter" not in scanned.values:
        missing = "the values of a parameter: -p KEY=VALUES" if scanned.rest else "a script"
        raise UsageError(f"echelon sweep needs {missing}", hint=f"echelon sweep {_LINE}")
    from echelon.launch.run_directory import new_path
    from echelon.trials.sweep import space
    from echelon.trials.sweep.record import SweepQuestion

    values, script = scanned.last, scanned.rest[0]
    parameters = space.read(scanned.values["parameter"])
    is_program = scanned.is_program and not script.endswith(".py")
    before = ("-m",) if "module" in values else ("--",) if is_program else ()
    words = (*scanned.words(OF_RUN), *before, *scanned.rest)
    places = space.places(words)
    own = (*space.OWN, "batch_per_rank") if "global_batch" in values else space.OWN
    names = [parameter.name for parameter in parameters]
    for place in places:
        if place not in (*names, *own):
            raise UsageError(
                f"{{{place}}} has no values; -p gives values to {', '.join(names)}, and echelon to {', '.join(own)}",
                hint=f"-p {place}=1,2,4",
            )
    if "stop" in values:
        one_of(values["stop"], "--stop", STOPS)
    if not values.get("metric", "loss"):
        raise UsageError("--metric '': give the name of a number that the script prints", hint="--metric val_loss")
    label = "sweep-" + os.path.basename(script).removesuffix(".py")
    return SweepQuestion(
        folder=os.path.abspath(values.get("out") or new_path(RUNS, label, time.time(), os.urandom(8).hex())),
        arguments=tuple(arguments),
        parameters=parameters,
        words=words,
        metric=values.get("metric", ""),
        sign=-1 if "maximize" in values else 1,
        stops="stop" in values,
    )


def source_of(question: SweepQuestion, values: Mapping[str, str], trials: list[SweepTrial]) -> ListedTrials:
    """Return what gives trials to the slots; add those to `trials` that are known from the begin."""
    from echelon.trials.sweep import space
    from echelon.trials.sweep.source import ListedTrials, OptunaTrials
    from echelon.trials.sweep.trial import SweepTrial

    number, seed = _number(values, "samples", most=space.MOST_TRIALS), whole(values.get("seed", "0"), "--seed", least=0)
    how = one_of(values.get("sampler", "random" if number else "grid"), "--sampler", SAMPLERS)
    if bool(number) != (how != "grid"):
        why = "takes all combinations, and --samples only some" if number else "needs the number of trials"
        raise UsageError(f"--sampler {how} {why}", hint="--sampler random --samples 32")
    if how == "optuna":
        return OptunaTrials(trials, question.parameters, number=number, seed=seed, sign=question.sign)
    if not trials:
        drawn = space.draws(question.parameters, number, seed) if number else space.grid(question.parameters)
        trials += [SweepTrial(number=place, values=combination) for place, combination in enumerate(drawn)]
    return ListedTrials(tuple(trials))


def _refuse_beside_resume(scanned: Scanned) -> None:
    allowed = ("gpus_per_run", "ranks_per_run", "slots", "resume", "json")
    others = [row.names[-1] for row in (*OPTIONS, *OF_RUN) if row.key in scanned.values and row.key not in allowed]
    if others or scanned.rest:
        raise UsageError(
            f"--resume goes on with the command line of the sweep, and {(*others, *scanned.rest)[0]} would change it",
            hint=f"echelon sweep --resume {scanned.last['resume']}",
        )


def _number(values: Mapping[str, str], key: str, *, most: int = MOST_SLOTS) -> int:
    """Return the number of an option; 0: it is not given."""
    return whole(values[key], "--" + key.replace("_", "-"), least=1, most=most) if key in values else 0
