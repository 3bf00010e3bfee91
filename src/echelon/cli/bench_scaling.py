"""`echelon bench scaling`: the user's script on several numbers of ranks."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from echelon.cli.help import Help
from echelon.cli.options import OPTIONS as RUN_OPTIONS
from echelon.cli.options import Option, Scanned
from echelon.cli.readers import plot_files, whole
from echelon.cli.resources import RESOURCES
from echelon.cli.talk import print_table, say
from echelon.errors import UsageError
from echelon.host import Host

if TYPE_CHECKING:
    from echelon.trials.measured import MeasuredRun
    from echelon.trials.question import Question

COMMAND = "bench scaling"
NUM_STEPS, WARM_UP = 100, 40
_FROM_RUN = ("module", "env", "launch", "global_batch", "share_devices", "bind", "cpus_per_task", "scale", "no_check")
_NOT_FROM_SUBMIT = ("gpus", "nodes", "gpus_per_node", "global_batch", "cpus_per_task")
OWN: tuple[Option, ...] = (
    Option(names=("--ranks",), value="N[,N]", help="the numbers of ranks (default: 1, 2, 4 … up to the devices here)"),
    Option(names=("--strong",), help="all sizes have the same global batch (default)"),
    Option(names=("--weak",), help="each rank has the script's batch on all sizes: run's --per-device-batch"),
    Option(names=("--steps",), value="K", help="end each run after K optimizer steps (default: 100; 0: its own end)"),
    Option(names=("--warm-up",), value="K", help="the first K steps do not count (default: 40, or 40 % of few steps)"),
    Option(names=("--timeout",), value="TIME", help="end each run after 90 (seconds), 10m or 2h; its steps count"),
    Option(names=("--repeat",), value="R", help="run each size R times, which shows the spread (default: 1)"),
    Option(names=("--plot",), value="NAME", takes="file", help="draw NAME.svg and NAME.png"),
    Option(names=("--out",), value="DIR", takes="folder", help="keep the runs in this new folder"),
    Option(names=("--submit",), help="submit a Slurm job for each run, each after the one before"),
    Option(names=("--read",), value="DIR", takes="folder", help="say what the runs of a folder found, and run nothing"),
    Option(names=("--json",), help="print all numbers as JSON"),
    Option(names=("-h", "--help"), help="show this"),
)
OF_SUBMIT = tuple(option for option in RESOURCES if option.key not in _NOT_FROM_SUBMIT)
OF_RUN = tuple(
    option for option in RUN_OPTIONS if option.key in _FROM_RUN or (option.trains and option.key != "per_device_batch")
)
OPTIONS = (*OWN, *OF_SUBMIT, *OF_RUN)


def main(arguments: list[str], of_bench: Help) -> int:
    scanned = of_bench.scan(arguments, OPTIONS, command=COMMAND)
    values = scanned.last
    _refuse_contradictions(scanned, values)

    files = plot_files(values, usual="scaling")
    if "read" in values:
        from echelon.trials import scaling_jobs

        question, runs = scaling_jobs.read(values["read"], Host())
        return _tell(question, runs, values, files)
    return _submit(scanned, values, Host()) if "submit" in values else _measure(scanned, values, files, Host())


def _measure(scanned: Scanned, values: Mapping[str, str], files: tuple[str, ...], host: Host) -> int:
    from echelon.trials import question as trials_question
    from echelon.trials import scaling

    question = _question(scanned, values)
    plan = scaling.plan_of(question, host)
    numbers = trials_question.parse(values["ranks"]) if "ranks" in values else trials_question.usual(plan)
    placed = trials_question.place(plan, numbers, shares_devices="share_devices" in values)
    question, num_threads = scaling.with_equal_threads(replace(question, sizes=placed), plan, host)
    if num_threads:
        say(f"each rank of all sizes gets {scaling.THREADS}={num_threads}; --env {scaling.THREADS}=N changes it")
    scaling.refuse_what_cannot_run(question, host)
    with _folder(values) as folder:
        runs = []
        for run in scaling.measure(question, host, say, folder):
            runs.append(run)
            if run.failure:
                say(f"{run.num_ranks} ranks: {run.failure}")
        return _tell(question, runs, values, files)


def _submit(scanned: Scanned, values: Mapping[str, str], host: Host) -> int:
    from echelon.trials import question as trials_question
    from echelon.trials import scaling_jobs
    from echelon.trials.question import Size

    if "ranks" not in values:
        raise UsageError("--submit needs --ranks: the numbers of devices to book", hint="--ranks 1,2,4,8 --submit")
    numbers = trials_question.parse(values["ranks"])
    question = replace(
        _question(scanned, values), sizes=tuple(Size(num_ranks=number, num_nodes=0) for number in numbers)
    )
    resources = scanned.words(OF_SUBMIT)
    scaling_jobs.refuse_what_cannot_run(question, resources, host)
    folder = os.path.abspath(_new_folder(values.get("out") or _stamped(scanned.rest[0])))
    starts = scaling_jobs.submit(question, resources, host, say, folder)
    shown = os.path.relpath(folder)
    if "json" in values:
        told = {"format": 1, "directory": folder, "jobs": [start.job for start in starts]}
        print(json.dumps(told))
    say(f"they run one after the other; when they have ended: echelon bench scaling --read {shown}")
    return 0


def _tell(question: Question, runs: list[MeasuredRun], values: Mapping[str, str], files: tuple[str, ...]) -> int:
    from echelon.trials import efficiency, plot, scaling_report

    sizes = efficiency.rows(question, runs)
    if files:
        plot.draw(question, sizes, files)
        say(f"the picture is in {' and '.join(files)}")
    if "json" in values:
        print(json.dumps(scaling_report.as_plain(question, sizes), indent=1))
    else:
        print_table(scaling_report.text(question, sizes))
    return 1 if not sizes or any(row.failure for row in sizes) else 0


def _question(scanned: Scanned, values: Mapping[str, str]) -> Question:
    """Return what is asked, still without the sizes."""
    from echelon.script import distributes
    from echelon.trials import own_runs
    from echelon.trials.question import STRONG, WEAK, Question

    script, is_module = scanned.rest[0], "module" in values
    how = distributes.how(own_runs.imports_of(script, is_module=is_module, command=COMMAND))
    is_own = bool(how) or values.get("scale") == "off"
    if how and values.get("scale", "off") not in ("off", "auto"):
        raise UsageError(
            f"--scale {values['scale']} is for a script for one device, but {script} distributes itself: {how}",
            hint=f"remove --scale {values['scale']}",
        )
    mode = WEAK if "weak" in values else STRONG
    if is_own and "global_batch" not in values:
        if "strong" in values:
            raise UsageError(
                f"{script} distributes itself: {how or '--scale off'}; so each rank has the batch that the script "
                "takes, and --strong needs a global batch that echelon divides",
                hint=f"--weak   or --strong --global-batch 256 {script} --batch-size {{batch_per_rank}}",
            )
        if mode == STRONG:
            say(f"note: {script} distributes itself, so each rank has the batch that it takes: weak scaling")
        mode = WEAK
    num_steps = whole(values.get("steps", str(NUM_STEPS)), "--steps", least=0, usual=NUM_STEPS)
    if 0 < num_steps < FEWEST:
        raise UsageError(f"--steps {num_steps}: a rate needs at least {FEWEST} steps", hint=f"--steps {NUM_STEPS}")
    return Question(
        script=script,
        arguments=scanned.rest[1:],
        is_module=is_module,
        is_own=is_own,
        sizes=(),
        mode=mode,
        num_steps=num_steps,
        warm_up=_warm_up(values, num_steps),
        num_repeats=whole(values.get("repeat", "1"), "--repeat", least=1, usual=3),
        options=scanned.words(OF_RUN),
        timeout=values.get("timeout", ""),
    )


FEWEST = 10  # the fewest steps of a run: some warm up, and five are timed


def _warm_up(values: Mapping[str, str], num_steps: int) -> int:
    if "warm_up" not in values:
        return min(WARM_UP, num_steps * 2 // 5) if num_steps else WARM_UP
    number = whole(values["warm_up"], "--warm-up", least=0, usual=WARM_UP)
    if num_steps and number > num_steps // 2:
        raise UsageError(
            f"--warm-up {number}: of {num_steps} steps, at most half may warm up",
            hint=f"--warm-up {number} --steps {2 * number}",
        )
    return number


def _refuse_contradictions(scanned: Scanned, values: Mapping[str, str]) -> None:
    if "read" in values:
        unread = sorted(set(values) - {"read", "json", "plot"})
        if unread or scanned.rest:
            contradiction = "takes no script" if scanned.rest else f"does not go with --{unread[0].replace('_', '-')}"
            raise UsageError(
                f"--read says what runs found that have ended, and {contradiction}",
                hint="echelon bench scaling --read DIRECTORY",
            )
        return
    if scanned.is_program or not scanned.rest:
        raise UsageError("echelon bench scaling needs a script", hint="echelon bench scaling --ranks 1,2,4 train.py")
    if "strong" in values and "weak" in values:
        raise UsageError("--strong and --weak are two benchmarks", hint="use one, and then the other")
    of_jobs = [option.names[-1] for option in OF_SUBMIT if option.key in values]
    if of_jobs and "submit" not in values:
        raise UsageError(
            f"{of_jobs[0]} is for jobs that are submitted, but without --submit the runs are started here",
            hint=f"--submit {of_jobs[0]} …",
        )
    if "submit" in values:
        _refuse_with_submit(values)


def _refuse_with_submit(values: Mapping[str, str]) -> None:
    for key, why in {
        "plot": "there is nothing to draw before the jobs have ended: --read DIRECTORY --plot NAME",
        "share_devices": "each rank of a submitted job has its own device",
    }.items():
        if key in values:
            option = f"--{key.replace('_', '-')}"
            raise UsageError(f"{option} does not go with --submit: {why}", hint=f"remove {option}")
    if "time" not in values:
        raise UsageError("--submit needs --time, the limit of each job", hint="--submit --time 30m")


@contextmanager
def _folder(values: Mapping[str, str]) -> Iterator[str]:
    """Offer the folder of the runs: a new one that stays, or a hidden one that is removed."""
    if "out" in values:
        yield os.path.abspath(_new_folder(values["out"]))
        return
    from echelon.launch.run_directory import shared_folder

    with shared_folder("bench", "the runs write there") as folder:
        yield folder


def _new_folder(path: str) -> str:
    """Make a folder; raise UsageError if it is there and holds files, or cannot be made."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        if os.listdir(path):
            raise UsageError(f"--out {path} is not empty", hint=f"--out {path.rstrip('/')}-2")
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UsageError(
            f"--out {path or repr('')}: the folder cannot be used: {error.strerror}", hint="--out bench"
        ) from None
    return path


def _stamped(script: str) -> str:
    stem = os.path.basename(script).removesuffix(".py")
    return os.path.join("echelon-bench", f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}")
