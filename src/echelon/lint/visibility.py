"""Which devices each rank of a job sees: only its own, or all of its node."""

from __future__ import annotations

import re
from dataclasses import replace

from echelon.environment import digits
from echelon.hardware import vendors
from echelon.lint.job import JobScript
from echelon.lint.pages import words
from echelon.lint.program import Program
from echelon.lint.starts import LAUNCHERS, StartedProgram
from echelon.lint.values import VariableAssignment

VISIBLE = tuple(dict.fromkeys(name for each in vendors.BY_NAME for layer in each.filters for name in layer))
OWN, ALL, UNKNOWN = "own", "all", ""


def seen_by(start: StartedProgram, job: JobScript) -> str:
    """Return whether each rank that is started sees its own device alone, or several; UNKNOWN if it is not certain."""
    if start.step is not None and start.step.has_unknown:
        return UNKNOWN
    launcher = next((each for each in (*start.outer, start) if each.name in LAUNCHERS), None)
    ranks = _ranks(launcher, job)
    if narrowing(job):
        return OWN
    binding = _asked(start, job, "gpu-bind").removeprefix("verbose,").removeprefix("v,")
    if re.match(r"(?:single|per_task):1$|map_gpu:", binding) or _asked(start, job, "ntasks-per-gpu"):
        return OWN
    per_task = digits.whole(_asked(start, job, "gpus-per-task").rpartition(":")[2])
    if per_task and not binding.startswith("none"):
        return OWN if per_task == 1 else ALL if ranks > 1 else UNKNOWN
    tasks = job.step_tasks_per_node(start)
    is_several = job.devices_per_node > 1 and (ranks > 1 or (launcher is None and start.step is not None and tasks > 1))
    return ALL if is_several and binding in ("", "none") else OWN if job.devices_per_node == 1 else UNKNOWN


def _ranks(launcher: StartedProgram | None, job: JobScript) -> int:
    """Return how many ranks a launcher starts on a node; 0 if unknown."""
    option = launcher.option("nproc-per-node", "num-gpus") if launcher else None
    if option is None:
        return 0
    return job.devices_per_node if option[1] in ("gpu", "auto") else job.number(option[1])


def _asked(start: StartedProgram, job: JobScript, name: str) -> str:
    """Return an option's value for a step: its own, or the job's."""
    option = start.step.option(name) if start.step else None
    return option[1] if option else job.value(name)


def narrowing(job: JobScript) -> VariableAssignment | None:
    """Return the variable with which each task chooses the only device that it sees."""
    mine = re.compile(rf"{words()['slurm']['variable']}LOCALID|LOCAL_RANK")
    return next((each for each in job.variables if each.name in VISIBLE and mine.search(each.value)), None)


def placed(program: Program, jobs: list[JobScript]) -> Program:
    """Return a program with what its ranks see in the jobs that run it, and the largest number of their nodes."""
    runs = [(start, job) for job in jobs for start in job.starts if job.runs(start, program)]
    seen = {seen_by(start, job) for start, job in runs}
    nodes = [job.step_nodes(start) for start, job in runs if start.step is not None]
    sees = seen.pop() if len(seen) == 1 else UNKNOWN
    return replace(program, sees=sees, num_nodes=max(nodes, default=1)) if runs else program
