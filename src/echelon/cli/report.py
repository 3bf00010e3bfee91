"""`echelon report`: what a run used, where its time went, and what would help; or two runs side by side."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.cli.talk import print_json, print_table
from echelon.errors import UsageError
from echelon.spec import LIBRARIES

if TYPE_CHECKING:
    from echelon.monitor.account import Account
    from echelon.monitor.page.page import RunStory
    from echelon.monitor.predicted import PredictedMemory, PredictedTime
    from echelon.monitor.recorded import Recorded

    Comparisons = dict[str, PredictedMemory | PredictedTime]

OPTIONS: tuple[Option, ...] = (
    Option(names=("--json",), help="as JSON"),
    Option(names=("--html",), value="FILE", help="write a page with plots, in one file that needs nothing else"),
    Option(names=("--paragraph",), help="print the paragraph for an application for more hours"),
    Option(names=("--track",), value="NAME[:WHERE]", choices=tuple(LIBRARIES),
           help="write the run to tensorboard, mlflow or wandb, as far as it is not there; may be repeated"),
    Option(names=("-h", "--help"), help="show this"),
)  # fmt: skip
HELP = Help(
    command="report",
    usage=("[options] [RUN]", "[options] RUN RUN"),
    about="Say what a run used, where its time went, how long its steps took, and what would help.\n"
    "Without RUN it is the newest run of this folder. Two runs are compared.",
    operands=(Option(names=("RUN",), takes="run"),),
    groups=(("options", OPTIONS),),
    example="echelon report train-8f65",
)
MOST_RUNS = 2


def main(arguments: list[str]) -> int:
    scanned = HELP.scan_all(arguments)
    from echelon.launch import runs
    from echelon.launch.runs import RUNNING
    from echelon.monitor import account, recorded, report
    from echelon.monitor.page import page

    if len(scanned.rest) > MOST_RUNS:
        raise UsageError(f"a report is of one run or of two, not of {len(scanned.rest)}", hint="echelon report RUN RUN")
    paths = [runs.find(name) for name in scanned.rest] or runs.all_runs()[-1:]
    if not paths:
        raise UsageError("echelon-runs/ of this folder has no runs", hint="echelon report DIRECTORY-OF-A-RUN")
    if "track" in scanned.values:
        return _track(paths, scanned.values["track"])
    states = [runs.read(path).state for path in paths]
    records = [recorded.read(path) for path in paths]
    accounts = [
        account.of_run(record, time.time() if state == RUNNING else None)
        for record, state in zip(records, states, strict=True)
    ]
    compared = [
        _compared(record, run, is_over=state != RUNNING)
        for record, run, state in zip(records, accounts, states, strict=True)
    ]
    names = [runs.short_name(path) for path in paths]
    told = [_story(*each) for each in zip(names, states, records, accounts, strict=True)]
    if "html" in scanned.values:
        _write(scanned.values["html"][-1], page.page(told))
    elif "paragraph" in scanned.values:
        print("\n\n".join(report.paragraph_of_run(run.recorded, run.account) for run in told))
    elif "json" in scanned.values:
        print_json(runs=[_as_json(run, known) for run, known in zip(told, compared, strict=True)])
    elif len(paths) == MOST_RUNS:
        print_table(report.comparison((names[0], names[1]), (accounts[0], accounts[1])))
    else:
        earlier = [account.of_run(recorded.read(path)) for path in recorded.earlier_jobs(paths[0])]
        run = told[0]
        lines = [comparison.line for comparison in compared[0].values()]
        told_of_jobs = (run.name, run.state, run.recorded, run.account, run.advice, earlier)
        print_table(report.text(*told_of_jobs, predicted=lines, costs=run.costs.sentences))
    return 0


def _story(name: str, state: str, record: Recorded, run: Account) -> RunStory:
    from echelon.monitor import advice, costs
    from echelon.monitor.page.page import RunStory

    spent = costs.of_run(record, run, os.environ)
    advised = advice.advise(record, run)
    return RunStory(name=name, state=state, recorded=record, account=run, advice=advised, costs=spent)


def _track(paths: list[str], texts: list[str]) -> int:
    """Write runs to trackers, each as far as its files are; a run that goes on may be written again later."""
    from echelon.cli.readers import tracker
    from echelon.launch import runs
    from echelon.launch.runs import RUNNING
    from echelon.monitor import recorded
    from echelon.monitor.track.follow import Follower, alone

    trackers = [tracker(text, "--track") for text in texts]
    num_failed = 0
    for path in paths:
        exit_code = None if runs.state(path) == RUNNING else recorded.read(path).report.get("exit_code", 1)
        with alone(path) as say:
            follower = Follower(path, trackers, say)
            follower.end(exit_code)
            num_failed += follower.num_failed
    return 1 if num_failed else 0


def _compared(record: Recorded, run: Account, *, is_over: bool) -> Comparisons:
    """Compare a run with what was predicted, by the names in JSON; keep the ratios of a run that is over."""
    from echelon.monitor import predicted

    comparisons = {
        "predicted": predicted.memory_of_run(record, run, os.environ),
        "predicted_step_seconds": predicted.time_of_run(record, run, os.environ),
    }
    known = {name: comparison for name, comparison in comparisons.items() if comparison is not None}
    for comparison in known.values() if is_over else ():
        predicted.keep(comparison, os.environ)
    return known


def _as_json(run: RunStory, comparisons: Comparisons) -> dict[str, Any]:
    from echelon.monitor import report

    about = {
        "name": run.name,
        "path": run.recorded.path,
        "state": run.state,
        **asdict(run.account),
        "goodput": run.account.goodput,
    }
    compared = {name: comparison.as_data() for name, comparison in comparisons.items()}
    findings = [
        {"kind": kind, "sentence": sentence}
        for kind, sentences in report.findings(run.recorded, run.account, run.advice)
        for sentence in sentences
    ]
    paragraph = report.paragraph_of_run(run.recorded, run.account)
    told = {"costs": asdict(run.costs), "findings": findings, "advice": run.advice, "paragraph": paragraph}
    return {**about, **compared, **told}


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}", hint="echelon report --html report.html"
        ) from None
    print(path)
