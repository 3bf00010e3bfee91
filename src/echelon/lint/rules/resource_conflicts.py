"""Rules about options that contradict each other, or that contradict the script."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from echelon.lint.command import SimpleCommand, Word
from echelon.lint.finding import Hit, Rule, hit
from echelon.lint.job import DEVICE_OPTIONS, JobScript
from echelon.lint.pages import words
from echelon.lint.starts import LAUNCHERS
from echelon.units import counted

MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
HAS_DEVICES = re.compile(
    r"gpu|cuda|[avhbt]\d{2,3}|gh\d*|mi\d{3}|rtx|dgx|hgx|boost|accel|tesla|volta|ampere|hopper|-g\b", re.I
)
"""Match names of partitions, constraints and reservations whose nodes have devices."""
WANTS_DEVICE = re.compile(r"(?:^|=)(?:cuda(?::\d+)?|gpu)$")


def folder_of_output(job: JobScript) -> Iterator[Hit]:
    """Find a log in a folder that the job itself creates: Slurm opens the log before."""
    for name in ("output", "error"):
        option = job.option(name)
        folder = os.path.dirname(option.value) if option else ""
        if option is None or not folder or "%" in folder:
            continue
        path = folder.rstrip("/").removeprefix("./")
        maker = next((command for command in job.commands if _makes(command, path)), None)
        if maker is not None and not _submits_too(job, maker):
            message = f"the job makes {folder} (line {maker.argv[0].line}), but Slurm opens the log earlier"
            submit = words()["slurm"]["submit"]
            yield hit(option, message, f"mkdir -p {folder} && {submit} {os.path.basename(job.path)}")
            return


def _makes(command: SimpleCommand, path: str) -> bool:
    made = [word.text.rstrip("/").removeprefix("./") for word in command.argv[1:]]
    is_below = any(each.startswith(f"{path}/") for each in made)
    return command.program == "mkdir" and (path in made or (is_below and "-p" in made))


def _submits_too(job: JobScript, command: SimpleCommand) -> bool:
    """Say whether the branch or the function of a command also submits: then it runs before the job."""
    own = next((block for block in reversed(command.blocks) if block.kind in ("if", "case", "function", "group")), None)
    beside = (each for each in job.script.commands if own in each.blocks) if own else iter(())
    return any(word.text == words()["slurm"]["submit"] for each in beside for word in each.words)


def one_core_each(job: JobScript) -> Iterator[Hit]:
    """Find several ranks on a node with one core each."""
    names = ("cpus-per-task", "cpus-per-gpu", "mincpus", "exclusive", "cores-per-socket", "ntasks-per-core", "hint")
    option = job.option("ntasks-per-node") or job.option("ntasks")
    if option is None or any(job.option(name) for name in names) or job.header.is_heterogeneous:
        return
    if job.kind is not None and (job.kind.cores_per_device or job.has_whole_nodes):
        return  # their share of the node's cores says it better
    tasks = job.tasks_per_node
    is_on_each = any(start.step is not None and not _other_tasks(start) for start in job.started("python", "python3"))
    if tasks > 1 and is_on_each and tasks == job.devices_per_node:
        message = f"{tasks} tasks on each node, but no --cpus-per-task: each task, with its loaders, gets one core"
        yield hit(option, message, "--cpus-per-task=8   or as many cores as the node has for each device")


def _other_tasks(start: object) -> bool:
    step = getattr(start, "step", None)
    return step is not None and step.option("cpus-per-task", "c", "exclusive") is not None


def contradicting_tasks(job: JobScript) -> Iterator[Hit]:
    """Find --ntasks that differs from the product of --nodes and --ntasks-per-node."""
    total, per_node, nodes = (job.option(name) for name in ("ntasks", "ntasks-per-node", "nodes"))
    count = job.asked("ntasks")
    if total is None or not count or nodes is None or not job.asked("nodes") or "-" in nodes.value:
        return
    num_nodes = job.asked("nodes")
    if per_node is not None and job.asked("ntasks-per-node"):
        product = num_nodes * job.asked("ntasks-per-node")
        if product != count:
            shown = f"{counted(num_nodes, 'node')} × {counted(job.asked('ntasks-per-node'), 'task')} = {product}"
            yield hit(total, f"{counted(count, 'task')} in all, but {shown}: --ntasks wins", f"--ntasks={product}")
    elif count < num_nodes:
        message = f"{counted(count, 'task')} on {num_nodes} nodes: Slurm uses only {count} of them"
        yield hit(total, message, f"--ntasks={num_nodes}")


def two_memories(job: JobScript) -> Iterator[Hit]:
    """Find several options for memory; Slurm accepts a single option."""
    options = [option for name in MEMORY if (option := job.option(name))]
    if len(options) > 1:
        last = max(options, key=lambda option: (option.line, option.column))
        other = next(option for option in options if option is not last)
        message = f"{last.written} and {other.written} (line {other.line}) exclude each other"
        yield hit(last, message, f"keep one of them: {other.written}")


def signal(job: JobScript) -> Iterator[Hit]:
    """Find a signal that nothing catches, or that the shell cannot catch in time."""
    option = job.option("signal")
    match = re.fullmatch(r"(?:([BR]+):)?(?:SIG)?(\w+)(?:@\d+)?", option.value.upper()) if option else None
    if option is None or match is None:
        return
    name = match[2]
    traps = [command for command in job.commands if command.program == "trap" and _catches(command, name)]
    if "B" not in (match[1] or ""):
        if traps:
            trap = f"the trap of line {traps[0].argv[0].line} never runs"
            message = f"{option.written} sends the signal only to the steps: {trap}"
            yield hit(option, message, f"--signal=B:{option.value}")
        return
    if not traps and not any(command.program == "exec" for command in job.commands):
        message = f"the batch shell gets {name} but has no trap for it, so the signal ends the job"
        yield hit(option, message, f"trap 'your commands' {name}   or --signal={name}@… for the steps")
        return
    behind = [each for each in job.starts if traps and each.word.line > traps[0].argv[0].line and not each.outer]
    step = next((each for each in behind if each.name in ("srun", "python", "python3", *LAUNCHERS)), None)
    if step is not None and not any(_is_behind(job, each.command) for each in behind):
        message = f"bash runs the trap for {name} only after {step.name} has ended: the trap comes too late"
        yield hit(step.word, message, f"{step.name} … &\nwait")


def _catches(command: SimpleCommand, name: str) -> bool:
    return any(word.text.upper().removeprefix("SIG") == name for word in command.argv[1:])


def _is_behind(job: JobScript, command: SimpleCommand) -> bool:
    """Say whether a command runs in the background, by itself or within a block."""
    if command.ending == "&":
        return True
    return any(each.ending == "&" and each.words[0].raw in ("done", "}", "fi") for each in job.script.commands)


def overwritten(job: JobScript) -> Iterator[Hit]:
    """Find --requeue with a log that the second start truncates."""
    option = job.option("requeue")
    is_kept = job.value("open-mode").startswith("a")
    if option is not None and not is_kept and not job.value("output").startswith("/dev/null"):
        message = "Slurm empties the log when it requeues the job: the output of the first run is lost"
        yield hit(option, message, "--open-mode=append")


def empty_environment(job: JobScript) -> Iterator[Hit]:
    """Find --export=NONE, which steps inherit."""
    option = job.option("export")
    if option is None or option.value.upper() not in ("NONE", "NIL"):
        return
    name = words()["slurm"]["variable"] + "EXPORT_ENV"
    is_undone = job.last(name) or any(
        command.program == "unset" and any(word.text == name for word in command.argv) for command in job.commands
    )
    loads = any(command.program in ("module", "ml", "source", ".", "conda", "export") for command in job.commands)
    for start in job.started("srun"):
        if not is_undone and loads and start.option("export") is None:
            message = f"{option.written} also applies to srun: its tasks get nothing that this script sets or loads"
            yield hit(start.word, message, "srun --export=ALL …")
            return


def no_device_asked(job: JobScript) -> Iterator[Hit]:
    """Find a request without devices for a script that needs one."""
    places = ("partition", "constraint", "qos", "reservation", "nodelist", "account", "licenses", "tres-per-task")
    if not job.is_batch or job.kind is not None or any(job.option(name) for name in DEVICE_OPTIONS):
        return
    if any(HAS_DEVICES.search(job.value(name)) for name in places) or any(map(job.option, ("exclusive", "nodelist"))):
        return
    if any(step.option(*DEVICE_OPTIONS, "G") for step in job.started("srun")) or job.header.is_heterogeneous:
        return
    for start in job.started("python", "python3", *LAUNCHERS):
        program = job.program(start)
        line = program.needs_device if program else 0
        wanted = next((word for word in start.words if _wants(start.words, word)), None)
        wanted = wanted or next((word for word in _signs(job)), None)
        if wanted is not None or line:
            why = wanted.text if wanted else f"{program.path}, line {line}," if program else ""
            message = f"the job asks for no device, but {why} needs one"
            yield hit(wanted or start.word, message, "--gpus-per-node=1   or what the site's guide says")
            return


def _wants(argv: tuple[Word, ...], word: Word) -> bool:
    """Say whether an argument asks for a device: --device cuda, --accelerator=gpu, --nproc-per-node=gpu."""
    at = argv.index(word)
    is_about = re.search("device|accel|nproc", (argv[at - 1].text if at else "") + word.text) is not None
    return is_about and WANTS_DEVICE.search(word.text) is not None


def _signs(job: JobScript) -> Iterator[Word]:
    """Yield other words in a script that only make sense with a device."""
    for command in job.commands:
        if command.program in ("module", "ml") and not any(word.text == "unload" for word in command.argv):
            yield from (word for word in command.argv if re.match(r"(?:cuda|cudnn|nvhpc)\b", word.text.lower()))
        elif command.program == "nvidia-smi":
            yield command.argv[0]
    for start in job.started("singularity", "apptainer"):
        yield from (word for word in start.words if word.text == "--nv")
    variable = job.last("CUDA_VISIBLE_DEVICES")
    if variable is not None and re.fullmatch(r"\d(?:,\d+)*", variable.value):
        yield variable.word


RULES = (
    Rule(code="ECH127", find=folder_of_output),
    Rule(code="ECH128", find=one_core_each),
    Rule(code="ECH129", find=contradicting_tasks),
    Rule(code="ECH130", find=two_memories),
    Rule(code="ECH131", find=signal),
    Rule(code="ECH132", find=overwritten),
    Rule(code="ECH133", find=empty_environment),
    Rule(code="ECH134", find=no_device_asked),
)
