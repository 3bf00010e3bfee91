"""Run a script at each size, here or in the allocation of this command, one after the other."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from echelon.environment import threads
from echelon.host import Host
from echelon.orders import bench, codec
from echelon.trials import measured, own_runs, records, scratch
from echelon.trials.measured import MeasuredRun
from echelon.trials.own_runs import Say
from echelon.trials.question import WEAK, Question
from echelon.trials.records import BenchmarkStart
from echelon.trials.rehearse import TRACKERS
from echelon.units import counted

THREADS = "OMP_NUM_THREADS"
COMMAND = "bench scaling"
COPY, RUN = "copy", "run"


def plan_of(question: Question, host: Host) -> dict[str, Any]:
    """Return the plan of a run on all that is at hand; raise UsageError for words that `echelon run` refuses."""
    shared = [option for option in question.options if option != "--share-devices"]
    words = ["--json", *_training(question), *shared, *question.command]
    plan: dict[str, Any] = json.loads(own_runs.refuse_what_cannot_run(host, words, command=COMMAND))
    return plan


def refuse_what_cannot_run(question: Question, host: Host) -> None:
    """Raise UsageError, before anything is copied, for a size that `echelon run` will not accept."""
    for size in question.sizes:
        own_runs.refuse_what_cannot_run(
            host, [*size.words, *_training(question), *question.options, *question.command], command=COMMAND
        )


def with_equal_threads(question: Question, plan: dict[str, Any], host: Host) -> tuple[Question, int]:
    """Give each rank of all sizes the same threads on nodes without devices, and return how many; 0: left as it is.

    A single rank would use all cores of its node, and no number of ranks would be faster.
    """
    is_set = THREADS in host.environ or any(word.startswith(f"{THREADS}=") for word in question.options)
    if plan["devices_per_node"] or is_set or "--cpus-per-task" in question.options:
        return question, 0
    most = max(-(-size.num_ranks // size.num_nodes) for size in question.sizes)
    number = threads.omp_num_threads(threads.num_cores(), most)
    return replace(question, options=(*question.options, "--env", f"{THREADS}={number}")), number


def starts_of(question: Question) -> list[BenchmarkStart]:
    """Return all runs in their order: each size once, then each size again, so that a drift meets all sizes."""
    return [
        BenchmarkStart(
            num_ranks=size.num_ranks,
            repeat=repeat,
            folder=BenchmarkStart.name_of(size.num_ranks, repeat),
            run=os.path.join(BenchmarkStart.name_of(size.num_ranks, repeat), RUN),
        )
        for repeat in range(1, question.num_repeats + 1)
        for size in question.sizes
    ]


def measure(question: Question, host: Host, say: Say, folder: str) -> Iterator[MeasuredRun]:
    """Run the script at each size in a copy of the current folder; yield each run, also one that failed.

    A size that failed is not run again.
    """
    sizes = {size.num_ranks: size for size in question.sizes}
    starts = starts_of(question)
    records.write(folder, question, starts)
    contents = scratch.look(os.getcwd()).kept_in(os.path.join(folder, "original"))
    failed: set[int] = set()
    for place, start in enumerate(starts):
        if start.num_ranks in failed:
            continue
        again = f", run {start.repeat} of {question.num_repeats}" if question.num_repeats > 1 else ""
        say(f"{counted(start.num_ranks, 'rank')}{again} …")
        copy = copied(contents, folder, start)
        words = [
            "--show", "none", "--run-dir", os.path.join(folder, start.run),
            *sizes[start.num_ranks].words, *options(question, os.path.join(folder, start.folder)),
            *scratch.command_in(question, os.getcwd(), copy),
        ]  # fmt: skip
        done = own_runs.finish(host, words, folder=copy)
        shutil.rmtree(copy, ignore_errors=True)
        if done.exit_code and not os.path.exists(os.path.join(folder, start.run, "report.json")):
            starts[place] = replace(start, failure=first_line(done.stdout))
            records.write(folder, question, starts)
        run = measured.read(folder, starts[place], question)
        if run.failure:
            failed.add(start.num_ranks)
        yield run
    records.write(folder, question, [each for each in starts if os.path.isdir(os.path.join(folder, each.folder))])
    shutil.rmtree(os.path.join(folder, "original"), ignore_errors=True)


def copied(contents: scratch.Contents, folder: str, start: BenchmarkStart) -> str:
    """Make the folder of a run with its copy of the user's folder; return the path of the copy."""
    os.mkdir(os.path.join(folder, start.folder))
    copy = os.path.join(folder, start.folder, COPY)
    contents.copy_to(copy)
    return copy


def options(question: Question, folder: str, *, loader_workers: int = 0) -> list[str]:
    """Return the options of `echelon run` by which a run is measured; its record goes into the folder."""
    order = bench.BenchOrder(folder, question.num_steps, question.warm_up, loader_workers)
    variables = {**TRACKERS, "WANDB_DIR": folder, bench.VARIABLE: codec.write(order)}
    return [*own_runs.variables(variables, observes=question.is_own), *_training(question), *question.options]


def _training(question: Question) -> list[str]:
    """Return the options by which the script trains, and its time limit; those of the user come behind."""
    timeout = ["--timeout", question.timeout] if question.timeout else []
    if question.is_own:
        return ["--scale", "off", *timeout]
    scale = [] if "--scale" in question.options else ["--scale", "data"]
    return [*scale, *timeout, *(["--per-device-batch"] if question.mode == WEAK else [])]


def first_line(output: str) -> str:
    """Return the error of a command that could not start: "echelon: error: the run directory …"."""
    lines = [line for line in output.strip().splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("echelon: error: ")]
    return (errors or lines or ["the run ended without a word"])[0].removeprefix("echelon: error: ")
