"""Rules about the start of ranks: the launcher's numbers against the job's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from echelon.environment import digits
from echelon.lint.finding import Hit, Rule, hit, judged
from echelon.lint.job import DEVICE_OPTIONS, JobScript
from echelon.lint.pages import words
from echelon.lint.program import Program, constant, keyword
from echelon.lint.rules.meeting import MEETING
from echelon.lint.starts import LAUNCHERS, StartedProgram
from echelon.units import counted

OF_TORCHRUN = "PET_"
"""The beginning of the variables with which torchrun's options can be given."""
PER_NODE = ("torchrun", "accelerate", "deepspeed")
SELF_STARTING = frozenset(
    {"lightning", "pytorch_lightning", "horovod", "ray", "transformers", "accelerate", "jax", "tensorflow"}
)


def nproc(job: JobScript) -> Iterator[Hit]:
    """Find a torchrun with another number of ranks than devices."""
    for start in job.started("torchrun", "deepspeed"):
        option = start.option("nproc-per-node", "num-gpus")
        count = job.number(option[1]) if option else 0
        if option and count and job.devices_per_node and count != job.devices_per_node:
            if not job.has_known_nodes and job.option("gpus-per-task"):
                continue  # the tasks, and their devices, may be on several nodes
            word = option[0]
            message = f"{counted(count, 'rank')} on each node, but the job has {_devices(job)} there"
            name = word.text.partition("=")[0] if word.text.startswith("--") else "--nproc-per-node"
            mistake = hit(word, message, f"{name}={job.devices_per_node}")
            is_certain = count > job.devices_per_node and job.has_known_nodes and not job.is_chosen(start.command)
            yield judged(mistake, is_certain=is_certain)


def _devices(job: JobScript) -> str:
    return counted(job.devices_per_node, "device")


def started_by_each_task(job: JobScript) -> Iterator[Hit]:
    """Find an srun that starts a launcher several times on a node, so that all ranks start several times."""
    for start in job.started(*PER_NODE):
        tasks = job.step_tasks_per_node(start)
        nodes = start.option("nnodes", "num-machines")
        if not job.has_known_nodes and nodes and job.number(nodes[1]) == tasks:
            continue  # Slurm may give each task a node
        if start.step and tasks > 1:
            message = f"srun starts {tasks} of {start.name} on each node, and each of them starts all the ranks"
            mistake = hit(start.word, message, "srun --ntasks-per-node=1 …   with --ntasks-per-node=1 above")
            yield judged(mistake, is_certain=job.has_known_nodes or bool(job.option("ntasks-per-node")))


def on_first_node_alone(job: JobScript) -> Iterator[Hit]:
    if not job.is_batch:
        return
    reaching = ("ssh", "pdsh", "clush", "parallel-ssh", "ray", "ibrun", "jsrun", "aprun", "mpiexec.hydra", "flux")
    if any(command.program in reaching for command in job.commands):
        return
    for start in job.started("torchrun", "accelerate", "python", "python3"):
        if job.num_nodes < 2 or start.step is not None or start.outer or job.is_chosen(start.command):
            continue
        launches = start.name in ("torchrun", "accelerate")
        if not launches and (start.script is None or _is_beside_steps(job, start) or job.option("array")):
            continue
        if start.name == "accelerate" and start.option("deepspeed-hostfile", "deepspeed-multinode-launcher"):
            continue
        message = f"{start.name} starts only on the first node, but the job has {job.num_nodes}"
        tasks = "" if not launches else f"--ntasks={job.num_nodes} --ntasks-per-node=1 "
        mistake = hit(start.word, message, f"srun {tasks}{start.name} …")
        yield judged(mistake, is_certain=launches and _waits(job, start))
        if not launches:
            return


def _waits(job: JobScript, start: StartedProgram) -> bool:
    number = start.option("nnodes", "num-machines")
    return number is not None and ":" not in number[1] and job.number(number[1]) > 1


def _is_beside_steps(job: JobScript, start: StartedProgram) -> bool:
    """Say whether another line of the script, or the started program, uses the other nodes."""
    programs = [program for program in job.programs if job.runs(start, program)]
    starts_others = {"subprocess", "submitit", "ray", "dask", "dask_jobqueue", "mpi4py", "parsl"}
    return any(starts_others & program.uses for program in programs) or any(
        each.name in ("srun", "mpirun", "mpiexec", "deepspeed", "horovodrun", "echelon") for each in job.starts
    )


def alone_on_several(job: JobScript) -> Iterator[Hit]:
    """Find launchers that train separately on each node: --standalone, or one node by default."""
    for start in job.started("torchrun"):
        nodes = job.step_nodes(start)
        if nodes < 2 or start.step is None or job.is_chosen(start.command) or _is_one_task(job, start):
            continue
        if standalone := start.option("standalone"):
            message = f"with --standalone each of {nodes} nodes trains alone: the nodes never exchange gradients"
            yield hit(standalone[0], message, _meeting(nodes))
        elif start.option("nnodes") is None and not start.has_unknown and not job.last(f"{OF_TORCHRUN}NNODES"):
            yield hit(start.word, f"without --nnodes each of {nodes} nodes trains alone", _meeting(nodes))


def _is_one_task(job: JobScript, start: StartedProgram) -> bool:
    """Say whether the step starts a single task, or may: then each node, or each training, has its own step."""
    number = start.step.option("ntasks", "n") if start.step else None
    return (number is not None and job.number(number[1]) == 1) or _is_placed(start)


def _is_placed(start: StartedProgram) -> bool:
    """Say whether the nodes of a step are named, or unknown: they may be one node of the job."""
    if start.step is None:
        return False
    return start.step.has_unknown or start.step.option("nodelist", "w", "relative", "r", "exclude", "x") is not None


def _meeting(nodes: int) -> str:
    job_id = words()["slurm"]["variable"] + "JOB_ID"
    endpoint = '--rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT"'
    return f'--nnodes={nodes} --rdzv-backend=c10d --rdzv-id="${job_id}" {endpoint}'


def nnodes(job: JobScript) -> Iterator[Hit]:
    """Find a torchrun that waits for another number of nodes than the job has."""
    for start in job.started("torchrun", "accelerate"):
        option = start.option("nnodes", "num-machines")
        count = job.number(option[1]) if option and ":" not in option[1] else 0
        nodes = job.step_nodes(start)
        is_open = (
            job.is_chosen(start.command) or _is_placed(start) or (not job.has_known_nodes and start.step is not None)
        )
        if option and count and job.is_batch and count != nodes and not is_open:
            if start.step is None and count > nodes and nodes > 1:
                continue
            word, value = option
            does = "waits for the others until it times out" if count > nodes else "leaves the others idle"
            message = f"this line names {counted(count, 'node')}, but the job has {nodes}: it {does}"
            repair = word.text.replace(value, str(nodes)) if "=" in word.text else f"{word.text} {nodes}"
            yield judged(hit(word, message, repair), is_certain=count > nodes and not start.has_unknown)


def no_meeting(job: JobScript) -> Iterator[Hit]:
    """Find a launcher on several nodes without a meeting point."""
    names = ("rdzv-endpoint", "master-addr", "standalone", "rdzv-conf")
    for start in job.started("torchrun"):
        option = start.option("nnodes")
        if job.is_chosen(start.command) or start.has_unknown or job.last(f"{OF_TORCHRUN}RDZV_ENDPOINT"):
            continue  # a variable of unknown value may contain the option
        backend, address = start.option("rdzv-backend"), start.option("master-addr")
        if option and job.number(option[1]) > 1 and address and backend and backend[1] in ("c10d", "etcd"):
            if start.option("rdzv-endpoint") is None:
                message = (
                    f"--rdzv-backend={backend[1]} does not read --master-addr: each node waits on its own localhost"
                )
                yield hit(address[0], message, _meeting(job.number(option[1])))
        elif option and job.number(option[1]) > 1 and not any(start.option(name) for name in names):
            message = f"several nodes ({option[1]}), but no --rdzv-endpoint: each waits on its own localhost:29500"
            yield hit(option[0], message, _meeting(job.number(option[1])))


def one_process(job: JobScript) -> Iterator[Hit]:
    """Find a single process on several devices."""
    devices = job.devices_per_node * job.num_nodes
    if devices < 2 or any(job.started(*LAUNCHERS, "echelon")):
        return
    for start in job.started("python", "python3"):
        script, program = start.script, job.program(start)
        tasks = job.step_tasks_per_node(start) * (job.num_nodes if start.step else 1)
        if script is None or tasks != 1 or program is None or not program.is_distributed or _spawns(program):
            continue
        is_part = start.step is not None and start.step.option(*DEVICE_OPTIONS, "G", "exact", "overlap") is not None
        if is_part or start.command.ending == "&" or any(block.kind == "loop" for block in start.command.blocks):
            continue  # one of several steps or processes, each with its own devices
        message = f"one process starts, but the job has {devices} devices: {program.path} needs a rank for each device"
        mistake = hit(start.word, message, f"torchrun --standalone --nproc-per-node={devices} {script.raw} …")
        yield judged(mistake, is_certain=program.always_meets and not _is_wrapped(start))
        return


def _is_wrapped(start: StartedProgram) -> bool:
    """Say whether another script or an unknown program starts this one, perhaps several times."""
    argv = start.command.argv
    before = argv[: next(index for index, word in enumerate(argv) if word is start.word)]
    return any(word.text.endswith((".sh", ".bash")) or word.text.startswith(("./", "$")) for word in before)


def tasks_of_ranks(job: JobScript) -> Iterator[Hit]:
    """Find an srun whose number of tasks differs from the number of devices."""
    are_ranks = any(variable.name in MEETING for variable in job.variables)  # of one program: its tasks meet
    if job.devices_per_node < (1 if are_ranks else 2):
        return
    for start in job.started("python", "python3"):
        tasks = job.step_tasks_per_node(start)
        if start.step is None or tasks < 2 or any(outer.name in LAUNCHERS for outer in start.outer):
            continue
        if tasks != job.devices_per_node:
            message = f"{tasks} ranks on each node, but the job has {_devices(job)} there"
            yield hit(start.word, message, f"--ntasks-per-node={job.devices_per_node}")


def two_launchers(job: JobScript) -> Iterator[Hit]:
    for start in job.started("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun"):
        around = [outer for outer in start.outer if outer.name in ("mpirun", "mpiexec", "horovodrun")]
        if start.name in ("mpirun", "mpiexec", "horovodrun"):
            around += [outer for outer in start.outer if outer.name == "srun" and job.step_tasks_per_node(start) > 1]
        if around and (count := _copies(job, around[0])) != 1:
            message = f"{around[0].name} starts several of {start.name}, and each of them starts all ranks"
            mistake = hit(start.word, message, f"{start.name} …   without {around[0].name} before it")
            yield judged(mistake, is_certain=count > 1)


def _copies(job: JobScript, start: StartedProgram) -> int:
    """Return how many programs a launcher starts on each node; 0 if unknown."""
    if start.name == "srun":
        return job.step_tasks_per_node(start)
    per_node = start.option("npernode", "ppn", "N", "map-by")
    if per_node is not None:
        return 1 if re.search(r"(?:^|:)1(?::|$)|^node$", per_node[1]) else 2 if digits.is_number(per_node[1]) else 0
    total = start.option("np", "n", "c")
    count = job.number(total[1]) if total else job.tasks_per_node * job.num_nodes
    return -(-count // job.num_nodes) if count and not start.has_unknown else 0


def gpu_variable(job: JobScript) -> Iterator[Hit]:
    """Find Slurm's variable for devices used as a number, where it is unset or contains a type."""
    name = words()["slurm"]["variable"] + "GPUS_PER_NODE"
    option = job.option("gpus-per-node")
    if not job.is_batch or (option and digits.is_number(option.value)) or job.last(name):
        return
    for command in job.commands:
        for word in command.words:
            used = f"${name}" in word.live or f"{{{name}}}" in word.live
            if used and command.program not in ("echo", "printf", "[", "[[", "test", "case"):
                is_value = f"is {option.value!r}, which is not a number" if option else "is set only by --gpus-per-node"
                repair = word.raw.replace(name, words()["slurm"]["variable"] + "GPUS_ON_NODE")
                yield hit(word, f"{name} {is_value}", repair, becomes=repair)


def processes_of_accelerate(job: JobScript) -> Iterator[Hit]:
    """Find an accelerate whose --num_processes does not count the ranks of all nodes."""
    for start in job.started("accelerate"):
        option = start.option("num-processes")
        count, nodes = (job.number(option[1]) if option else 0), job.step_nodes(start)
        wanted = job.devices_per_node * nodes
        if option and count and wanted and count != wanted:
            word, value = option
            has = f"{nodes} × {job.devices_per_node} = {counted(wanted, 'device')}"
            message = f"{counted(count, 'process')} in all, but the job has {has}"
            repair = word.text.replace(value, str(wanted)) if "=" in word.text else f"{word.text} {wanted}"
            is_certain = count > wanted and job.has_known_nodes and not job.is_chosen(start.command)
            yield judged(hit(word, message, repair), is_certain=is_certain)


def trainer(job: JobScript) -> Iterator[Hit]:
    """Find a Lightning Trainer whose devices and num_nodes differ from the job's."""
    for program in job.programs:
        if not {"lightning", "pytorch_lightning"} & program.uses or not job.devices_per_node or not job.is_batch:
            continue
        for call in program.called("Trainer"):
            yield from _numbers_of_trainer(job, program, call)


def _numbers_of_trainer(job: JobScript, program: Program, call: ast.Call) -> Iterator[Hit]:
    place = next((start.word for start in job.starts if job.runs(start, program)), None)
    for name, there in (("num_nodes", job.num_nodes), ("devices", job.devices_per_node)):
        value = constant(keyword(call, name))
        value = 1 if value is None and name == "num_nodes" and keyword(call, name) is None else value
        if place is not None and type(value) is int and 0 < value != there:
            message = f"Trainer({name}={value}) in {program.path}, line {call.lineno}, but the job has {there}"
            mistake = hit(place, message, f"Trainer({name}={there}, …)")
            yield judged(mistake, is_certain=job.has_known_nodes and (name != "devices" or value > there))


def horovod(job: JobScript) -> Iterator[Hit]:
    """Find Horovod, whose last version is of 2023."""
    for start in job.started("horovodrun"):
        yield hit(
            start.word, "Horovod's last version is 0.28.1 of June 2023", "torchrun …   and DistributedDataParallel"
        )


def _spawns(program: Program) -> bool:
    return "spawn" in program.words or "start_processes" in program.words or bool(SELF_STARTING & program.uses)


def unset_address(job: JobScript) -> Iterator[Hit]:
    """Find an address in a variable that nothing in the script sets."""
    for start in job.started("torchrun"):
        option, nodes = start.option("rdzv-endpoint", "master-addr"), start.option("nnodes")
        match = re.match(r"\$\{?([A-Za-z_]\w*)\}?", option[1]) if option else None
        if option is None or match is None or nodes is None or job.number(nodes[1]) < 2 or not job.is_batch:
            continue
        is_from_outside = job.reads_other_files or job.writer is not None or job.option("export") is not None
        if not is_from_outside and not _is_set(job, match[1]):
            message = f"nothing in this script sets {match[1]}, where {job.number(nodes[1])} nodes are to meet"
            first = f'{match[1]}=$(scontrol show hostnames "${words()["slurm"]["variable"]}JOB_NODELIST" | head -n 1)'
            yield judged(hit(option[0], message, first), is_certain=False)


def _is_set(job: JobScript, name: str) -> bool:
    """Say whether a script gives a variable a value that does not depend on the variable itself."""
    if name.startswith(words()["slurm"]["variable"]):
        return True
    own = re.compile(rf"\$\{{?{name}\b(?!:?-)")
    if any(variable.name == name and not own.search(variable.value) for variable in job.variables):
        return True
    setting = ("read", "mapfile", "readarray", "for", "getopts", "printf")
    return any(word.text == name for each in job.commands if each.program in setting for word in each.words)


RULES = (
    Rule(code="ECH201", find=nproc),
    Rule(code="ECH202", find=started_by_each_task),
    Rule(code="ECH203", find=on_first_node_alone),
    Rule(code="ECH204", find=alone_on_several),
    Rule(code="ECH205", find=nnodes),
    Rule(code="ECH206", find=no_meeting),
    Rule(code="ECH206", find=unset_address),
    Rule(code="ECH215", find=one_process),
    Rule(code="ECH216", find=gpu_variable),
    Rule(code="ECH217", find=two_launchers),
    Rule(code="ECH221", find=trainer),
    Rule(code="ECH222", find=tasks_of_ranks),
    Rule(code="ECH223", find=horovod),
    Rule(code="ECH224", find=processes_of_accelerate),
)
