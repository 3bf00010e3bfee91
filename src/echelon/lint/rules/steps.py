"""Rules about the options that a step inherits from its job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from echelon.lint.command import SHELLS
from echelon.lint.executed_commands import INERT
from echelon.lint.finding import Hit, Rule, hit
from echelon.lint.job import JobScript
from echelon.lint.starts import LAUNCHERS, StartedProgram, is_inert
from echelon.units import counted

SMALL = frozenset(
    {
        "hostname", "nvidia-smi", "rocm-smi", "echo", "date", "mkdir", "cp", "rsync", "ls", "cat", "env", "rm",
        "uname", "lscpu", "ip", "touch", "true", "sleep", "tar", "unzip", "id", "pwd", "module", "wget", "curl",
    }
)  # fmt: skip
"""Programs for which one core is enough."""


def cores_not_inherited(job: JobScript) -> Iterator[Hit]:
    """Find an srun without --cpus-per-task: since Slurm 22.05 it does not inherit the job's."""
    option = job.option("cpus-per-task")
    hands_on = any(name.startswith("SRUN_CPUS") for name in job.exported_names)
    if option is None or job.number(option.value) < 2 or hands_on or _is_handed_on(job):
        return
    for start in job.started("srun"):
        rest = start.words[len(start.own) :]
        if rest and (rest[0].text.rpartition("/")[2] in SMALL or is_inert(rest) or _only_prepares(job, start)):
            continue
        if start.option("cpus-per-task", "c", "cpus-per-gpu", "cpu-bind") is None:
            count = job.number(option.value)
            message = f"the job has --cpus-per-task={count}, but the step does not inherit it: each task gets one core"
            counts = start.option("ntasks", "n", "ntasks-per-node") is not None  # then more cores may not fit
            becomes = "" if counts else f"{start.word.raw} --cpus-per-task={count}"
            mistake = hit(start.word, message, f"srun --cpus-per-task={count} …", becomes=becomes)
            # guides of a site omit the option if its known facts say nothing about it
            yield replace(mistake, severity="note") if job.machine else mistake


def _only_prepares(job: JobScript, start: StartedProgram) -> bool:
    """Say whether a step runs only a shell with small programs."""
    if not any(word.text.rpartition("/")[2] in SHELLS for word in start.words):
        return False
    inner = [command for command in job.commands if command.outer is start.command]
    light = (*INERT, *SMALL, "pip", "virtualenv", "conda", "if", "fi", "done")
    return bool(inner) and all(command.program in light for command in inner)


def _is_handed_on(job: JobScript) -> bool:
    """Say whether the site's facts state that steps inherit the option."""
    quirks = job.machine.quirks if job.machine else ()
    return any("cpus-per-task" in quirk.text and "handed on" in quirk.text for quirk in quirks)


def tasks_overridden(job: JobScript) -> Iterator[Hit]:
    """Find srun's --ntasks-per-node overridden by the job's number of tasks."""
    option = job.option("ntasks") or job.option("ntasks-per-node")
    if option is None:
        return
    for start in job.started("srun"):
        step_option = start.option("ntasks-per-node")
        wanted, has = (job.number(step_option[1]) if step_option else 0), job.tasks_per_node
        if step_option and wanted and has and wanted != has and start.option("ntasks", "n") is None:
            total = wanted * job.step_nodes(start)
            asked = counted(wanted, "task")
            message = f"this step asks for {asked} on each node, but the job's {option.written} overrides it"
            yield hit(step_option[0], message, f"--ntasks={total} --ntasks-per-node={wanted}")


def threads(job: JobScript) -> Iterator[Hit]:
    """Find more threads than cores, over all ranks."""
    variable = job.last("OMP_NUM_THREADS")
    ranks, cores = ranks_per_node(job), job.cores_per_node
    count = job.number(variable.value) if variable else 0
    if variable and count and ranks > 1 and cores and ranks * count > cores:
        product = f"{ranks} ranks × {counted(count, 'thread')} = {ranks * count}"
        message = f"{product}, but the node's part of the job has {counted(cores, 'core')}"
        yield hit(variable.word, message, f"export OMP_NUM_THREADS={max(1, cores // ranks)}")


def workers(job: JobScript) -> Iterator[Hit]:
    """Find more data loader workers than cores, over all ranks."""
    ranks, cores = ranks_per_node(job), job.cores_per_node
    if not ranks or not cores:
        return
    for start in job.starts:
        for index, word in enumerate(start.words):
            name, equals, value = word.text.partition("=")
            if name.lstrip("-").replace("_", "-") not in ("num-workers", "workers", "dataloader-num-workers"):
                continue
            follows = start.words[index + 1].text if not equals and index + 1 < len(start.words) else ""
            count = job.number(value or follows)
            if count and ranks * count > cores:
                product = f"{counted(ranks, 'rank')} × {counted(count, 'worker')} = {ranks * count}"
                message = f"{product}, but the node's part of the job has {counted(cores, 'core')}"
                yield hit(word, message, f"{name}{equals or ' '}{max(1, cores // ranks - 1)}")


def ranks_per_node(job: JobScript) -> int:
    """Return the number of ranks on each node; 0 if unknown."""
    for start in job.started(*LAUNCHERS):
        option = start.option("nproc-per-node", "num-gpus")
        if option:
            return job.number(option[1]) or (job.devices_per_node if option[1] in ("gpu", "auto") else 0)
    ranks = [job.step_tasks_per_node(start) for start in job.started("python", "python3") if start.step]
    return max(ranks, default=0)


RULES = (
    Rule(code="ECH213", find=cores_not_inherited),
    Rule(code="ECH214", find=tasks_overridden),
    Rule(code="ECH401", find=threads),
    Rule(code="ECH417", find=workers),
)
