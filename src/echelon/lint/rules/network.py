"""Rules about variables of the network, the caches and the libraries."""

from __future__ import annotations

import re
from collections.abc import Iterator

from echelon.hardware import vendors
from echelon.lint.command import SHELLS
from echelon.lint.finding import Edit, Hit, Rule, hit, judged, line_before
from echelon.lint.job import JobScript
from echelon.lint.pages import words
from echelon.lint.starts import CONTAINERS, LAUNCHERS, StartedProgram
from echelon.lint.values import VariableAssignment
from echelon.script.nearest import meant
from echelon.units import counted

PROVIDING = re.compile(r"AI-bindings|aif-singularity-bindings|PyTorch/|aws-ofi|LUMI/.*rccl", re.IGNORECASE)
STEPS = ("srun", "mpirun", "mpiexec")
CACHES = ("MIOPEN_USER_DB_PATH", "MIOPEN_CUSTOM_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


def _first(job: JobScript) -> StartedProgram | None:
    """Return the first program that starts ranks; None if echelon starts them."""
    is_without = job.partition is None and not job.wants_devices  # a partition of cores alone
    if any(job.started("echelon")) or is_without:
        return None
    return next((start for start in job.starts if start.name in ("srun", *LAUNCHERS) and _may_train(job, start)), None)


def _may_train(job: JobScript, start: StartedProgram) -> bool:
    """Say whether Python may run in the ranks: a compiled program, such as a solver, uses neither RCCL nor MIOpen."""
    if start.name not in STEPS or any(start in inner.outer for inner in job.starts):
        return True
    is_step = start.name == "srun"
    targets = [word.text for word in start.words[len(start.own) if is_step else 0 :]]
    scripts = [text for text in targets if text.endswith((".sh", ".bash", ".py")) or text.rpartition("/")[2] in SHELLS]
    return bool(scripts) or not targets or (is_step and "$" in targets[0])


def _provides(job: JobScript) -> bool:
    """Say whether a module sets up the network."""
    return any(
        PROVIDING.search(word.text)
        for command in job.commands
        if command.program in ("module", "ml")
        for word in command.argv
    )


def _meant_names(job: JobScript, name: str) -> set[str]:
    """Return the assigned names, and this name if an assigned one is a misspelling of it."""
    assigned = {variable.name for variable in job.variables}
    return assigned | {name for each in assigned if meant(each, [name])}


def no_interface(job: JobScript) -> Iterator[Hit]:
    """Find a job on several nodes that names no network interface for the ranks."""
    settings = {row.name: row for row in job.machine.settings} if job.machine else {}
    row, start = settings.get("NCCL_SOCKET_IFNAME"), _first(job)
    if row is None or start is None or job.num_nodes < 2 or _provides(job) or job.reads_other_files:
        return
    if row.name not in _meant_names(job, row.name):
        message = f"{job.num_nodes} nodes, but {row.name} is not set: {row.why}"
        repair = f"export {row.name}={row.value}"
        yield hit(start.word, message, repair, edits=line_before(job.lines, start.command, repair))


def wrong_interface(job: JobScript) -> Iterator[Hit]:
    """Find a network interface that the machine's nodes do not have, or the slow one."""
    variable = job.last("NCCL_SOCKET_IFNAME")
    known = [name for network in job.machine.networks for name in network.interfaces] if job.machine else []
    if variable is None or not known or not re.fullmatch(r"[\w,=^]+", variable.value):
        return
    if variable.value.startswith("^"):
        return
    names = variable.value.lstrip("=").split(",")
    wrong = [name for name in names if not any(each.startswith(name) for each in known)]
    if wrong:
        message = f"{wrong[0]} is not among the interfaces of the fast network: {', '.join(known)}"
        becomes = variable.word.raw.replace(variable.value, ",".join(known), 1)
        mistake = hit(variable.word, message, f"export NCCL_SOCKET_IFNAME={','.join(known)}", becomes=becomes)
        is_certain = wrong[0].startswith(("ib", "hsn"))  # a fast network that another machine has
        yield judged(mistake, is_certain=is_certain)


def too_many_nodes(job: JobScript) -> Iterator[Hit]:
    """Find a setting that is known to fail in jobs of this size."""
    for row in job.machine.settings if job.machine else ():
        variable = job.last(row.name)
        if variable and row.max_nodes is not None and job.num_nodes > row.max_nodes:
            most = f"it is for at most {row.max_nodes}: {row.why}"
            message = f"{row.name}={variable.value} on {job.num_nodes} nodes, and {most}"
            yield hit(variable.word, message, f"unset {row.name}")


def cache(job: JobScript) -> Iterator[Hit]:
    """Find a cache of compiled code on a file system that all nodes share."""
    for variable in job.variables:
        if variable.name in CACHES and re.match(
            r"\$\{?(?:HOME|SCRATCH|WORK)\b|~|/(?:scratch|project\w*|flash|pfs|home|users|work|blue|lustre)\b",
            variable.value,
        ):
            message = (
                f"{variable.name} is on the file system that all nodes share: every rank locks the same files there"
            )
            job_id = f"${words()['slurm']['variable']}JOB_ID"
            yield hit(variable.word, message, f'export {variable.name}="/tmp/$USER-{job_id}"')
        elif variable.name in CACHES and re.match(r"/tmp/[\w-]*$", variable.value):
            message = f"{variable.name}={variable.value} is the same for every user and every job of a node"
            yield hit(
                variable.word,
                message,
                f'export {variable.name}="{variable.value}-$USER-${words()["slurm"]["variable"]}JOB_ID"',
            )


def no_cache(job: JobScript) -> Iterator[Hit]:
    """Find a job of many ranks that leaves AMD's MIOpen cache in the home folder."""
    names = {row.name for row in job.machine.settings if row.kind == "folder"} if job.machine else set()
    start, row = _first(job), "MIOPEN_USER_DB_PATH"
    if (
        start is None
        or row not in names
        or job.devices_per_node * job.num_nodes < 2
        or _provides(job)
        or job.reads_other_files
    ):
        return
    if row not in _meant_names(job, row):
        ranks = job.devices_per_node * job.num_nodes
        job_id = f"${words()['slurm']['variable']}JOB_ID"
        message = f"{row} is not set: {ranks} ranks share one MIOpen database in the home folder"
        repair = f'export {row}="/tmp/$USER-miopen-{job_id}" MIOPEN_CUSTOM_CACHE_DIR="/tmp/$USER-miopen-{job_id}"'
        yield hit(start.word, message, repair, edits=line_before(job.lines, start.command, repair))


def unset(job: JobScript) -> Iterator[Hit]:
    """Find a number of threads that comes from a variable of Slurm which this job does not have."""
    name = f"{words()['slurm']['variable']}CPUS_PER_TASK"
    if (
        not job.is_batch
        or job.option("cpus-per-task")
        or job.option("tres-per-task")
        or job.last(name)
        or job.reads_other_files
    ):
        return
    for variable in job.variables:
        is_of_job = variable.command.outer is None  # srun sets it in a step with -c
        if (
            is_of_job
            and variable.name.endswith("NUM_THREADS")
            and re.fullmatch(r"\$\{?" + name + r"\}?", variable.value)
        ):
            message = f"{variable.name} is empty: {name} is set only in a job with --cpus-per-task"
            yield hit(variable.word, message, f"export {variable.name}=${{{name}:-1}}")


def of_no_job(job: JobScript) -> Iterator[Hit]:
    """Find a variable with Slurm's beginning that Slurm never sets."""
    table = words()["slurm"]
    prefix, known, mistaken = table["variable"], frozenset(table["set"]), table["mistaken"]
    named = re.compile(rf"\$\{{?{prefix}([A-Z][A-Z_]*)\b(?::?-([^}}]*))?")
    told: set[str] = set()
    for command in job.commands if job.is_batch else ():
        for word in command.words:
            for match in named.finditer(word.live):
                name = match[1]
                near = mistaken.get(name) or next(iter(meant(name, known)), "") if name not in known | told else ""
                if near and not job.last(prefix + name):
                    told.add(name)
                    value = f"always {match[2]}" if match[2] else "empty"
                    repair = word.raw.replace(prefix + name, prefix + near)
                    yield hit(word, f"Slurm does not set {prefix}{name}, so the value is {value}", repair)


def misspelt(job: JobScript) -> Iterator[Hit]:
    """Find a variable that nothing reads, with a name like a known one."""
    table = words()["variables"]
    known, prefixes = set(table["known"]), tuple({f"{name.partition('_')[0]}_" for name in table["known"]})
    for variable in _once(job):
        name = variable.name
        if (
            name in known
            or name in table["renamed"]
            or not name.startswith((*prefixes, "NCLL_", "NCC_", "MIOPN_", "MOIPEN_"))
        ):
            continue
        near = meant(name, known)
        if near:
            repair = variable.word.raw.replace(name, near[0], 1)
            edits = _called(job, name, near[0]) if len(near) == 1 else ()
            yield hit(variable.word, f"nothing reads {name}; programs read {near[0]}", repair, edits=edits)


def renamed(job: JobScript) -> Iterator[Hit]:
    """Find a variable that only older versions read."""
    table = words()["variables"]["renamed"]
    for variable in _once(job):
        if variable.name in table:
            new = table[variable.name]
            repair = variable.word.raw.replace(variable.name, new, 1)
            edits = _called(job, variable.name, new)
            yield hit(variable.word, f"{variable.name} is called {new}", repair, edits=edits)


def _called(job: JobScript, name: str, new: str) -> tuple[Edit, ...]:
    """Return the edits that rename a variable; none if the script expands it, or sets both names."""
    if re.search(rf"\$\{{?{name}\b", job.text) or job.last(new):
        return ()
    words = {(variable.word.line, variable.word.column): variable.word for variable in job.variables}
    named = [word for word in words.values() if word.raw.startswith(f"{name}=")]
    return tuple(Edit(line=word.line, column=word.column, old=name, new=new) for word in named)


def slow(job: JobScript) -> Iterator[Hit]:
    """Find a debugging switch that costs speed."""
    table = words()["variables"]["slow"]
    for variable in _once(job):
        if table.get(variable.name, "") == variable.value and variable.value:
            message = f"{variable.name}={variable.value} is for debugging: it slows everything down"
            yield hit(variable.word, message, f"unset {variable.name}")


def _once(job: JobScript) -> list[VariableAssignment]:
    variables: dict[str, VariableAssignment] = {}
    for variable in job.variables:
        variables.setdefault(variable.name, variable)
    return list(variables.values())


def binds(job: JobScript) -> Iterator[Hit]:
    """Find an image without the binds that it needs."""
    if job.machine is None or _provides(job):
        return
    bound = any(
        variable.name in ("SINGULARITY_BIND", "SINGULARITY_BINDPATH", "APPTAINER_BIND", "APPTAINER_BINDPATH")
        for variable in job.variables
    )
    for start in job.started(*CONTAINERS):
        row = next((row for row in job.machine.containers if row.binds and _is_for(row.images, job, start)), None)
        text = " ".join(word.text for word in start.words)
        if row is None or bound or re.search(r"(^| )(-B|--bind|--mount)", text) or job.num_nodes < 2:
            continue
        needed = ", ".join(row.binds[:3])
        message = (
            f"the container sees no folder of the host, but {job.num_nodes} nodes need {needed} for the fast network"
        )
        yield hit(start.word, message, f"{start.name} exec -B {','.join(row.binds)} …")


def _is_for(images: str, job: JobScript, start: StartedProgram) -> bool:
    """Say whether an image, perhaps given by a variable, is one of these."""
    stem = images.rstrip("*")
    names = [word.text for word in start.words]
    names += [
        variable.value
        for variable in job.variables
        if any(f"${variable.name}" in name or f"${{{variable.name}}}" in name for name in names)
    ]
    return not stem or any(stem in name for name in names) or not any(name.endswith(".sif") for name in names)


def conda(job: JobScript) -> Iterator[Hit]:
    """Find $WITH_CONDA expanded outside of the image that defines it."""
    for command in job.commands:
        for word in command.words:
            if command.outer is None and re.search(r"\$\{?WITH_CONDA\b", word.live) and job.last("WITH_CONDA") is None:
                message = "only the image sets $WITH_CONDA: it is empty here, so no environment is activated"
                is_quoted = word.raw[:1] == '"' == word.raw[-1:] and "'" not in word.text
                is_alone = is_quoted and word.raw.count("$") == 1 and not re.search(r"[\\`]", word.raw)
                repair = f"'{word.text}'" if is_quoted else "'$WITH_CONDA; python …'"
                yield hit(word, message, repair, becomes=repair if is_alone else "")


def image_without_gpu(job: JobScript) -> Iterator[Hit]:
    """Find an image that lacks the driver's libraries."""
    vendor = vendors.named(job.chip[1])
    options = set(vendor.container_options)
    if not vendor.image_needs_option or not job.devices_per_node:
        return
    if any(options & {word.text for word in start.words} for start in job.started(*CONTAINERS)):
        return  # the image without it may be one that needs no device
    option = vendor.container_options[0]
    variables = [f"{runtime}_{option.lstrip('-').upper()}" for runtime in ("SINGULARITY", "APPTAINER")]
    for start in job.started(*CONTAINERS):
        words_of_start = [word.text for word in start.words]
        first = words_of_start[0] if words_of_start else ""
        is_set = any(variable.name in variables for variable in job.variables)
        if first in ("exec", "run") and not options & set(words_of_start) and not is_set:
            asked = counted(job.devices_per_node, "device")
            message = f"{start.name} {first} without {option}: the image sees no device, but the job has {asked}"
            word = start.words[0]
            edits = (Edit(line=word.line, column=word.column, old=word.raw, new=f"{word.raw} {option}"),)
            mistake = hit(start.word, message, f"{start.name} {first} {option} …", edits=edits)
            yield judged(mistake, is_certain=not start.has_unknown and _is_training(job, start))


def _is_training(job: JobScript, start: StartedProgram) -> bool:
    """Say whether an image needs a device for sure: a launcher of ranks, or a script that fails without one."""
    inner = [each for each in job.starts if start in each.outer]
    programs = [program for each in inner for program in job.programs if job.runs(each, program)]
    return any(each.name in LAUNCHERS for each in inner) or any(each.needs_device for each in programs)


def one_profile(job: JobScript) -> Iterator[Hit]:
    """Find a profiler that runs in every rank and writes a single file."""
    for start in job.started("rocprof", "rocprofv2", "rocprofv3", "nsys"):
        tasks = job.step_tasks_per_node(start) * job.step_nodes(start) if start.step else 1
        option = start.option("o", "output", "output-file", "d", "output-directory")
        if tasks > 1 and (option is None or not re.search(r"[$%]", option[1])) and start.name != "nsys":
            rank = f"${words()['slurm']['variable']}PROCID"
            message = f"{counted(tasks, 'rank')} write " + (f"{option[1]}" if option else "the same results.csv")
            yield hit(start.word, message, f"srun … bash -c '{start.name} -o results-{rank}.csv …'")


RULES = (
    Rule(code="ECH402", find=no_interface),
    Rule(code="ECH403", find=wrong_interface),
    Rule(code="ECH404", find=too_many_nodes),
    Rule(code="ECH405", find=cache),
    Rule(code="ECH406", find=misspelt),
    Rule(code="ECH407", find=renamed),
    Rule(code="ECH408", find=slow),
    Rule(code="ECH409", find=binds),
    Rule(code="ECH410", find=conda),
    Rule(code="ECH411", find=image_without_gpu),
    Rule(code="ECH414", find=one_profile),
    Rule(code="ECH418", find=no_cache),
    Rule(code="ECH421", find=unset),
    Rule(code="ECH421", find=of_no_job),
)
