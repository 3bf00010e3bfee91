"""The options of a chain of jobs: --chain, --max-hours and --resume-anyway."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from echelon.cli.options import Option
from echelon.environment import digits
from echelon.errors import UsageError
from echelon.spec import Job

if TYPE_CHECKING:
    from echelon.jobs.submit import BatchScript, ChainWish
    from echelon.script.reading import ScriptReading

UNTIL_DONE = "until-done"
MOST_JOBS = 1000
OPTIONS: tuple[Option, ...] = (
    Option(
        names=("--chain",),
        value="N",
        choices=(UNTIL_DONE,),
        help="up to N jobs, one after the other, until the training ends; until-done: as many as --max-hours allows",
    ),
    Option(names=("--max-hours",), value="H", help="with --chain: the most hours of all jobs together"),
    Option(names=("--resume-anyway",), help="with --chain: go on also if the script was edited"),
)  # fmt: skip
_NOT_IN_CHAIN = {
    "plain": "a plain script runs without echelon, which hands the training over",
    "wait": "it waits for one job",
    "follow": "it follows one job",
}


def read(values: Mapping[str, str], job: Job, reading: ScriptReading | None, *, saves: bool) -> ChainWish | None:
    """Return the chain that is asked for; None without --chain. Raise UsageError for a contradiction.

    `saves` says that what the job runs goes on by itself, as a sweep does.
    """
    if "chain" not in values:
        for key in ("max_hours", "resume_anyway"):
            if key in values:
                option = "--" + key.replace("_", "-")
                raise UsageError(f"{option} is for a chain of jobs, and --chain is missing", hint="--chain 5 …")
        return None
    from echelon.jobs.submit import ChainWish

    for key, why in _NOT_IN_CHAIN.items():
        if key in values:
            raise UsageError(f"--chain does not go with --{key}: {why}", hint=f"remove --{key}")
    num_jobs = _num_jobs(values["chain"])
    max_seconds = _max_hours(values, num_jobs) * 3600.0
    if job.checkpoints is None and not saves:
        _refuse_without_checkpoints(job, reading, values["chain"])
    elif "resume" in values and "resume_anyway" not in values:
        _refuse_edited(values["resume"], reading)
    return ChainWish(num_jobs=num_jobs, max_seconds=max_seconds, resumes_anyway="resume_anyway" in values)


def _num_jobs(text: str) -> int:
    if text == UNTIL_DONE:
        return 0
    number = digits.whole(text)
    if not 2 <= number <= MOST_JOBS:
        raise UsageError(
            f"--chain {text or repr('')}: give a number of jobs from 2 to {MOST_JOBS}, or {UNTIL_DONE}",
            hint="--chain 5 --max-hours 60",
        )
    return number


def _max_hours(values: Mapping[str, str], num_jobs: int) -> float:
    if "max_hours" not in values:
        from echelon import units

        hours = units.minutes(values["time"]) * (num_jobs or 10) / 60
        raise UsageError(
            "--chain starts jobs that nobody watches, so it needs --max-hours, the most hours of all jobs together",
            hint=f"--chain {values['chain']} --max-hours {hours:g}",
        )
    text = values["max_hours"]
    if not re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) or not float(text):
        raise UsageError(f"--max-hours {text or repr('')}: give a number of hours above 0", hint="--max-hours 60")
    return float(text)


def _refuse_without_checkpoints(job: Job, reading: ScriptReading | None, chain: str) -> None:
    """Refuse a script that echelon scales, and that would begin at its first step in each job."""
    from echelon.launch import prepare

    if prepare.decide(job, reading).how == "off":
        return  # a script that distributes itself saves and continues by itself
    raise UsageError(
        f"each job of the chain would begin {job.command.target} at its first step: --checkpoint-every is missing",
        hint=f"--chain {chain} --checkpoint-every 10m",
    )


def _refuse_edited(name: str, reading: ScriptReading | None) -> None:
    """Refuse to go on with the training of a chain whose script was edited since."""
    from echelon.jobs import settings
    from echelon.jobs.history import History
    from echelon.launch.runs import find

    edited = settings.differences(History(find(name)).sources, settings.hashes(reading, os.getcwd()))
    if edited:
        raise UsageError(
            f"--resume {name}: {settings.listed(edited)} since the last job of that chain, "
            "so this may be another training",
            hint=f"echelon submit --resume-anyway --resume {name} …   or undo the edit",
        )


def described(script: BatchScript) -> str:
    from echelon.scheduler.slurm.batch import cancellation

    chain = script.chain
    if chain is None:
        return ""
    jobs = f"up to {chain.num_jobs} jobs" if chain.num_jobs else "jobs until the training ends"
    return (
        f"chain {chain.name}: {jobs}, {chain.max_seconds / 3600:g} h at most in all; {cancellation(chain.name)} ends it"
    )
