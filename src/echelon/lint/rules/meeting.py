"""Rules about the meeting of ranks: addresses, ports, and variables that must reach them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import takewhile

from echelon.lint.command import SHELLS, SimpleCommand, Word
from echelon.lint.finding import Edit, Hit, Rule, hit, judged
from echelon.lint.job import JobScript
from echelon.lint.pages import words
from echelon.lint.program import Program, constant, keyword
from echelon.lint.starts import StartedProgram
from echelon.lint.values import VariableAssignment

HOST = re.compile(r"\$\(hostname(?: -[sfi])?\)|`hostname(?: -[sfi])?`|\$\{?HOSTNAME\}?")
NODES = re.compile(r"^(?!.*\bhead\b).*(show\s+hostnames?|nodeset|NODELIST)", re.DOTALL)
LAST = re.compile(r"\|\s*tail\s+(?:-n\s*|--lines=|-)1\b")
LOOPBACK = re.compile(r"(?:localhost|127\.0\.0\.1)(?::|$)")
MEETING = ("MASTER_ADDR", "HEAD_NODE", "RDZV_HOST", "MASTER_NODE", "HEAD_NODE_IP", "head_node_ip")
NEEDED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
GIVEN_BY_LAUNCHERS = (*NEEDED, "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
TOOL = re.compile(r"\b(scontrol|squeue|sinfo|sacct|srun)\b")


def _slurm(name: str) -> str:
    return f"{words()['slurm']['variable']}{name}"


def _first_node() -> str:
    return f'export MASTER_ADDR=$(scontrol show hostnames "${_slurm("JOB_NODELIST")}" | head -n 1)'


def _port() -> str:
    return f"export MASTER_PORT=$((20000 + {_slurm('JOB_ID')} % 10000))"


def fixed_port(job: JobScript) -> Iterator[Hit]:
    """Find a port that is equal in every job."""
    if not job.is_batch or job.takes_all_devices:
        return
    variable = job.last("MASTER_PORT")
    if variable and re.fullmatch(r"\d{4,5}", variable.value):
        yield hit(variable.word, f"every job uses port {variable.value}, and jobs may share the node", _port())
        return
    for start in job.started("torchrun", "accelerate"):
        option = start.option("master-port", "main-process-port", "rdzv-endpoint")
        match = re.search(r"(?:^|:)(\d{4,5})$", option[1]) if option else None
        if option and match:
            word = option[0]
            message = f"every job uses port {match[1]}, and jobs may share the node"
            yield hit(word, message, f"{_port()}   and here $MASTER_PORT")


def wrong_host(job: JobScript) -> Iterator[Hit]:
    """Find a master address that each node evaluates to itself."""
    for variable in job.variables:
        if variable.name not in MEETING or _is_of_one_node(job, variable):
            continue
        in_task = _in_task(variable.command) or (not job.is_batch and _is_wrapper(job))
        is_own = in_task and HOST.match(variable.live) is not None
        if is_own and job.num_nodes > 1:
            message = f"each node gives its own name: {job.num_nodes} nodes wait in {job.num_nodes} places"
            yield hit(variable.word, message, _first_node())
        elif is_own and not job.is_batch:
            message = "every task runs this line, and each node gives its own name"
            yield judged(hit(variable.word, message, _first_node()), is_certain=False)
        elif LOOPBACK.match(variable.value) and job.num_nodes > 1:
            message = f"{variable.value} means each node itself, but the job has {job.num_nodes} nodes"
            yield hit(variable.word, message, _first_node())
    for start in job.started("torchrun"):
        option = start.option("rdzv-endpoint", "master-addr")
        if option is None or job.step_nodes(start) < 2 or start.step is None or job.is_chosen(start.command):
            continue
        nodes = job.step_nodes(start)
        is_own = _in_task(start.command) and HOST.match(start.live("rdzv-endpoint", "master-addr")) is not None
        if LOOPBACK.match(option[1]) or is_own:
            yield hit(option[0], f"{option[1]} means each node itself, but the job has {nodes} nodes", _first_node())


def _is_of_one_node(job: JobScript, variable: VariableAssignment) -> bool:
    """Say whether an address is only for one node: in a branch, overwritten, or with steps of one node alone."""
    if any(block.kind in ("if", "case", "loop") for block in variable.command.blocks):
        return True
    steps = list(job.started("srun"))
    return job.last(variable.name) is not variable or (bool(steps) and all(job.step_nodes(each) == 1 for each in steps))


def host_in_script(job: JobScript) -> Iterator[Hit]:
    """Find localhost as the address in a script whose ranks are on several nodes."""
    for start in job.starts:
        program = job.program(start)
        nodes = job.step_nodes(start) if start.step else 1
        if program is None or nodes < 2 or job.is_chosen(start.command) or start.step is None or start.step.has_unknown:
            continue
        for node, address in _addresses(program):
            if LOOPBACK.match(address):
                where = f"{program.path}, line {node.lineno}:"
                message = f"{where} {address} means each node itself, but the job has {nodes} nodes"
                is_certain = any(_is_over_nodes(program, call) for call in program.called("init_process_group"))
                yield judged(hit(start.word, message, _first_node()), is_certain=is_certain)
                return


def _addresses(program: Program) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield each constant address that a script always sets."""
    for call in program.called("init_process_group"):
        address = constant(keyword(call, "init_method"))
        if isinstance(address, str) and address.startswith("tcp://"):
            yield call, address.removeprefix("tcp://")
    for node in program.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            is_address = constant(node.targets[0].slice) == "MASTER_ADDR" and isinstance(constant(node.value), str)
            if is_address and not program.is_tested(node):
                yield node, str(constant(node.value))


def _is_over_nodes(program: Program, call: ast.Call) -> bool:
    size = keyword(call, "world_size")
    if size is None:
        return not {"spawn", "start_processes"} & program.words
    is_of_node = re.fullmatch(r"[\w.]*device_count\(\)", ast.unparse(size)) is not None
    return not is_of_node and re.search(r"NODES|NODEID|NTASKS|NPROCS|WORLD_SIZE", " ".join(program.texts)) is not None


def _in_task(command: SimpleCommand) -> bool:
    """Say whether each task runs the command, as inside of `srun bash -c`."""
    outer = command.outer
    return outer is not None and (any(word.text == "srun" for word in outer.argv) or _in_task(outer))


def _is_wrapper(job: JobScript) -> bool:
    """Say whether srun starts this script, which has no Slurm options: it reads a task's own variables."""
    mine = [_slurm(name) for name in words()["slurm"]["of_each_task"]]
    return any(name in word.live for name in mine for command in job.commands for word in command.words)


def last_node(job: JobScript) -> Iterator[Hit]:
    """Find the address of the last node, where rank 0, which the others look for, is on the first."""
    if job.num_nodes < 2 or any(start.option("rdzv-backend", "rdzv-endpoint") for start in job.started("torchrun")):
        return
    for variable in job.variables:
        if variable.name in MEETING and LAST.search(variable.value) and NODES.search(variable.value):
            message = "the address is that of the last node, but rank 0 is on the first"
            yield hit(variable.word, message, _first_node())


def several_addresses(job: JobScript) -> Iterator[Hit]:
    """Find `hostname -i`, which prints several addresses on some nodes."""
    for command in (each for each in job.commands if each.program not in ("echo", "printf", "logger")):
        for word in command.words:
            match = re.search(
                r"(?:\$\(|`)(?:[^()`]*\s)?hostname\s+(-i|-I|--ip-address|--all-ip-addresses)\s*(?:\)|`)", word.live
            )
            if match:
                yield hit(word, f"hostname {match[1]} prints one word for each address of the node", _first_node())


def tool_in_container(job: JobScript) -> Iterator[Hit]:
    """Find Slurm's programs inside of an image, which lacks them."""
    for command in job.commands:
        outer = _container_around(job, command)
        if outer is None:
            continue
        options = takewhile(lambda word: word.text.rpartition("/")[2] not in SHELLS, outer.words)
        if any(re.search(r"(?<!\$)(?<!\{)\b(?:slurm|munge|scontrol|srun)\b", word.text) for word in options):
            continue  # Slurm's own programs may be bound into the image
        for word in command.words:
            is_run = re.search(r"\$\(|`", word.live) is not None or word is command.words[0]
            match = TOOL.search(word.live) if is_run else None
            if match and not re.search(r"[\w/.-]" + match[1], word.live):
                message = f"{match[1]} runs inside the container, which has no Slurm"
                yield hit(word, message, f"{_first_node()}   before {outer.name}")


def _container_around(job: JobScript, command: SimpleCommand) -> StartedProgram | None:
    if command.outer is None:
        return None
    return next(
        (
            start
            for start in job.starts
            if start.command is command.outer and start.name in ("singularity", "apptainer")
        ),
        None,
    )


def not_exported(job: JobScript) -> Iterator[Hit]:
    """Find a variable for ranks that is not exported."""
    table = words()["variables"]
    if not any(job.started("srun", "torchrun", "accelerate", "python", "python3", "mpirun", "deepspeed")):
        return
    for variable in job.variables:
        name = variable.name
        is_ours = name in table["for_ranks"] or name.startswith(tuple(table["prefixes_for_ranks"]))
        if not is_ours or name in job.exported_names or _is_expanded(job, name):
            continue
        is_needed = name in NEEDED and _meets_by_variables(job)
        if name in GIVEN_BY_LAUNCHERS and not is_needed:
            continue  # a launcher sets it, or nothing reads it
        assignment = variable.word.raw.partition("\n")[0]
        message = f"{name} is not exported: the programs that the script starts do not see it"
        mistake = hit(variable.word, message, f"export {assignment}", edits=_exported(variable))
        sets_it = any(f"environ['{name}'] = " in ast.unparse(program.tree) for program in job.programs)
        yield judged(mistake, is_certain=is_needed and not sets_it)


def _meets_by_variables(job: JobScript) -> bool:
    """Say whether ranks are started that find each other only by variables."""
    if any(job.started("torchrun", "accelerate", "deepspeed", "horovodrun", "echelon")):
        return False
    steps = [start for start in job.started("python", "python3") if start.step is not None and not start.is_brief]
    return any(job.step_tasks_per_node(start) * job.step_nodes(start) > 1 for start in steps)


def _exported(variable: VariableAssignment) -> tuple[Edit, ...]:
    """Return the edit that exports the variables of a command of assignments alone."""
    if variable.command.argv:
        return ()
    first = variable.command.words[0]
    return (Edit(line=first.line, column=first.column, old=first.raw, new=f"export {first.raw}"),)


def _is_expanded(job: JobScript, name: str) -> bool:
    pattern = re.compile(rf"\$\{{?{name}\b")
    written = (*job.commands, *job.script.commands)
    if any(pattern.search(word.live) for command in written for word in command.words):
        return True
    return any(not document.is_quoted and pattern.search(document.text) for document in job.script.documents)


def read_too_early(job: JobScript) -> Iterator[Hit]:
    """Find a task's own variable in the batch script, where it has the value of the first task."""
    if not job.is_batch:
        return
    mine = re.compile(rf"\$\{{?({'|'.join(map(_slurm, words()['slurm']['of_each_task']))})\b")
    num_tasks = max(
        [job.step_tasks_per_node(s) * job.step_nodes(s) for s in job.started("srun")], default=job.num_nodes
    )
    if num_tasks < 2:
        return
    for command in job.commands:
        if _in_task(command) or command.program in ("echo", "printf", "[", "[[", "test", "case", "for"):
            continue
        for word in command.words:
            match = mine.search(word.live)
            if match and _matters(word):
                message = f"the shell reads ${match[1]} before srun: it is 0 for all {num_tasks} tasks"
                if re.search(r"(?i)(?:node|machine)[_-]rank", word.text) and _meets_by_itself(job):
                    continue
                placed = hit(word, message, f"srun … bash -c '… {word.text.partition(chr(10))[0]} …'")
                yield judged(placed, is_certain=_is_needed(job, command, word))
    for document in job.script.documents:
        match = None if document.is_quoted else re.search(r"(?<!\\)" + mine.pattern, document.text)
        if match:
            line = document.line + document.text[: match.start()].count("\n")
            column = match.start() - document.text.rfind("\n", 0, match.start())
            message = f"the shell reads ${match[1]} while it writes the file: it is 0 for all {num_tasks} tasks"
            yield Hit(line=line, column=column, width=len(match.group()), message=message, repair=f"\\${match[1]}")


def _meets_by_itself(job: JobScript) -> bool:
    """Say whether every launcher of the job numbers its nodes itself, so that a node rank is not read."""
    backends = [start.option("rdzv-backend") for start in job.started("torchrun", "accelerate")]
    return bool(backends) and all(given is not None and given[1] != "static" for given in backends)


def _is_needed(job: JobScript, command: SimpleCommand, word: Word) -> bool:
    """Say whether ranks cannot find each other if a number is 0 for all: RANK, or a launcher's own."""
    if assigned := re.match(r"((?:LOCAL_)?RANK)=", word.text):
        again = any(each.name == assigned[1] and _in_task(each.command) for each in job.variables)
        return _meets_by_variables(job) and not again
    before = command.words[max(0, next(i for i, each in enumerate(command.words) if each is word) - 1)]
    if re.search("rank", before.text + word.text, re.I) and any(
        start.command is command and start.name.startswith("python") for start in job.starts
    ):
        return True
    for start in job.started("torchrun", "accelerate"):
        node_rank = start.option("node-rank", "machine-rank")
        backend = start.option("rdzv-backend")
        if node_rank is not None and (backend is None or backend[1] == "static"):
            return True
    return False


def _matters(word: Word) -> bool:
    """Say whether a name must differ between nodes: a path on a node's own disk need not."""
    return "/tmp" not in word.live and not re.search(r"DIR=|PATH=|CACHE|FILE=|^/", word.text)


def differing_id(job: JobScript) -> Iterator[Hit]:
    """Find a rendezvous id that each node generates for itself."""
    for start in job.started("torchrun"):
        option, live = start.option("rdzv-id"), start.live("rdzv-id")
        if option and re.search(r"\$\{?RANDOM|[(`](?:date|uuidgen|shuf)|\$\$", live) and _in_task(start.command):
            message = f"each node evaluates {option[1]} itself, so the nodes never meet"
            becomes = option[0].raw.replace(option[1], f"${_slurm('JOB_ID')}") if "=" in option[0].raw else ""
            yield hit(option[0], message, f'--rdzv-id="${_slurm("JOB_ID")}"', becomes=becomes)


def no_local_rank(job: JobScript) -> Iterator[Hit]:
    """Find RANK and WORLD_SIZE set by hand without LOCAL_RANK."""
    assigned = {variable.name for variable in job.variables}
    first = next((variable for variable in job.variables if variable.name == "RANK"), None)
    reads = [program.path for program in job.programs if "LOCAL_RANK" in program.required]
    is_read = bool(reads) or not job.programs
    if first is not None and "WORLD_SIZE" in assigned and "LOCAL_RANK" not in assigned and is_read:
        who = f": {reads[0]} reads it" if reads else ", which most scripts read"
        yield hit(
            first.word,
            f"RANK and WORLD_SIZE are set, but LOCAL_RANK is not{who}",
            f"export LOCAL_RANK=${_slurm('LOCALID')}",
        )
        return
    launched = any(job.started("torchrun", "accelerate", "deepspeed", "mpirun", "echelon"))
    for start in job.started("python", "python3"):
        many = start.step is not None and job.step_tasks_per_node(start) > 1
        reader = next((each.path for each in job.programs if each.path in reads and job.runs(start, each)), "")
        if reader and many and not launched and "LOCAL_RANK" not in assigned:
            message = f"srun does not set LOCAL_RANK, but {reader} reads it"
            yield hit(
                start.word,
                message,
                f"srun … bash -c 'LOCAL_RANK=${_slurm('LOCALID')} RANK=${_slurm('PROCID')} exec python …'",
            )


RULES = (
    Rule(code="ECH207", find=fixed_port),
    Rule(code="ECH208", find=wrong_host),
    Rule(code="ECH208", find=host_in_script),
    Rule(code="ECH209", find=several_addresses),
    Rule(code="ECH210", find=tool_in_container),
    Rule(code="ECH211", find=not_exported),
    Rule(code="ECH212", find=read_too_early),
    Rule(code="ECH218", find=differing_id),
    Rule(code="ECH219", find=no_local_rank),
    Rule(code="ECH234", find=last_node),
)
