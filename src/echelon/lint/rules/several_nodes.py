"""Rules about options that launchers need for several nodes or ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from echelon.lint.finding import Hit, Rule, hit
from echelon.lint.job import JobScript
from echelon.lint.pages import words
from echelon.lint.program import constant, keyword
from echelon.lint.starts import LAUNCHERS, StartedProgram


def no_machine_rank(job: JobScript) -> Iterator[Hit]:
    """Find accelerate on several nodes without a machine rank: each node would take itself for the first."""
    for start in job.started("accelerate"):
        machines = start.option("num-machines")
        count = job.number(machines[1]) if machines else 0
        others = ("machine-rank", "rdzv-backend", "config-file", "deepspeed-hostfile", "deepspeed-multinode-launcher")
        if machines is None or count < 2 or start.step is None or any(start.option(name) for name in others):
            continue
        message = f"{count} machines, but no --machine_rank: each node uses number 0, so the nodes never meet"
        rank = f"${words()['slurm']['variable']}NODEID"
        yield hit(machines[0], message, f"srun … bash -c 'accelerate launch --machine_rank {rank} …'")


def lightning_tasks(job: JobScript) -> Iterator[Hit]:
    """Find Lightning with several devices and one task on each node."""
    if not job.is_batch or job.header.is_heterogeneous or any(job.started(*LAUNCHERS, "echelon")):
        return
    for start in job.started("python", "python3"):
        program = job.program(start)
        if program is None or not {"lightning", "pytorch_lightning"} & program.uses:
            continue
        tasks = job.step_tasks_per_node(start) if start.step else job.tasks_per_node
        says_tasks = job.option("ntasks-per-node") or job.option("ntasks") or start.step
        for call in program.called("Trainer"):
            devices = _devices(job, start, call)
            if devices > 1 and tasks == 1 and says_tasks:
                where = f"{program.path}, line {call.lineno},"
                message = (
                    f"{where} has {devices} devices, but Slurm starts 1 task on each node: Lightning needs "
                    f"{devices} tasks"
                )
                yield hit(start.word, message, f"--ntasks-per-node={devices}   and srun before python")


def _devices(job: JobScript, start: StartedProgram, call: ast.Call) -> int:
    """Return the number of devices that a Trainer takes; 0 if unknown."""
    option = next((start.option(name) for name in ("devices", "trainer.devices") if start.option(name)), None)
    node = keyword(call, "devices") or keyword(call, "gpus")
    value = constant(node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return job.devices_per_node
    if value in ("auto", "-1"):
        return job.devices_per_node
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if node is not None and "device_count" in ast.unparse(node):
        return job.devices_per_node
    return job.number(option[1]) if option else 0


def keeps_waiting(job: JobScript) -> Iterator[Hit]:
    """Find --kill-on-bad-exit=0: after one rank fails, the others wait for it."""
    variable = job.last(f"{words()['slurm']['variable']}KILL_BAD_EXIT")
    inner = [each for each in job.starts if each.name in ("python", "python3", *LAUNCHERS)]
    training = {id(each.step.word) for each in inner if each.step is not None}
    for start in job.started("srun"):
        option = start.option("kill-on-bad-exit", "K")
        is_off = option is not None and option[1].strip() == "0" and option[0].text.endswith("0")
        is_off_by_default = variable is not None and variable.value == "0"
        several = job.step_tasks_per_node(start) * job.step_nodes(start) > 1
        if id(start.word) in training and several and (is_off or is_off_by_default):
            place = option[0] if option and is_off else variable.word if variable else start.word
            message = "if one rank fails, the others wait for it until the job's time limit"
            yield hit(place, message, "--kill-on-bad-exit=1")
            return


def no_slots(job: JobScript) -> Iterator[Hit]:
    """Find a hostfile for DeepSpeed without the number of devices of each host."""
    for start in job.started("deepspeed"):
        hostfile = start.option("hostfile", "H")
        if hostfile is None:
            continue
        for command in job.commands:
            targets = [each.target for each in command.redirections if each.operator in (">", ">>", ">|")]
            if not any(_same(target.text, hostfile[1]) for target in targets):
                continue
            texts = [word.text for each in job.script.commands for word in each.words]
            if "slots" not in " ".join(texts + [document.text for document in job.script.documents]):
                message = (
                    f"{hostfile[1]} has only names: DeepSpeed needs `name slots=N` in each line, and refuses the file"
                )
                number = job.devices_per_node or 8
                yield hit(command.argv[0] if command.argv else command.words[0], message, f'sed "s/$/ slots={number}/"')
                return


def _same(path: str, other: str) -> bool:
    return bool(other) and re.sub(r"[${}]|^\./", "", path) == re.sub(r"[${}]|^\./", "", other)


RULES = (
    Rule(code="ECH230", find=no_machine_rank),
    Rule(code="ECH231", find=lightning_tasks),
    Rule(code="ECH232", find=keeps_waiting),
    Rule(code="ECH233", find=no_slots),
)
