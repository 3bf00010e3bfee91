"""Find mistakes in scripts and in DeepSpeed's configuration that would show only after the start."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from echelon.dialects import horovod, installed, locks, own_starts
from echelon.dialects.ranks import Ranks
from echelon.environment import digits, regular_files
from echelon.errors import UsageError
from echelon.host import Host
from echelon.script.imports import Imports
from echelon.script.reading import UNKNOWN, Call, ScriptReading, Source
from echelon.spec import Job
from echelon.units import counted

TRAINERS = (
    "lightning.Trainer", "lightning.pytorch.Trainer", "pytorch_lightning.Trainer", "lightning.Fabric",
    "lightning.fabric.Fabric", "lightning_fabric.Fabric",
)  # fmt: skip
DEEPSPEED_FILES = (("deepspeed.initialize", "config"), ("deepspeed.initialize", "config_params"),
                   ("transformers.TrainingArguments", "deepspeed"))  # fmt: skip
NAMES_RANKS_OF_JAX = ("num_processes", "process_id", "cluster_detection_method")
READS_DEEPSPEED = frozenset({"deepspeed", "transformers", "accelerate", "trl"})


def refuse(job: Job, ranks: Ranks, reading: ScriptReading, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Raise UsageError for mistakes that fail or train wrongly in every rank; return notes on possible mistakes."""
    source = reading.source
    if source is None:
        return ()
    environ = {**environ, **dict(job.environ)}
    used = source.certain_imports
    if not job.container and not source.moves_path:
        _refuse_missing(source, used)
    num_ranks = ranks.num_ranks
    own_starts.refuse_own_starts(source, num_ranks)
    if used.keys() & READS_DEEPSPEED:
        _refuse_configuration(job, source, num_ranks)
    if num_ranks:
        _refuse_numbers_of_trainer(source, ranks)
    if max(num_ranks, ranks.num_nodes) > 1:
        _refuse_ranks_of_mpi(job, source, reading.imports, ranks, environ)
    if "tensorflow" in used and num_ranks != 1 and ranks.where != "meet":
        _refuse_set_cluster(environ, num_ranks)
    notes = _notes_of_jax(source, ranks) if "jax" in used and not job.mpi else ()
    return notes if job.container else (*notes, *locks.refuse_dead(source, ranks, environ, time.time))


def refuse_program(job: Job, ranks: Ranks, scripts: Iterable[ScriptReading], environ: Mapping[str, str]) -> None:
    """Raise UsageError for a program whose Python scripts need MPI, if MPI does not start it."""
    if max(ranks.num_ranks, ranks.num_nodes) == 1 or job.mpi:
        return
    environ = {**environ, **dict(job.environ)}
    for reading in scripts:
        if reading.source is not None:
            own = replace(job, command=reading.command)
            _refuse_ranks_of_mpi(own, reading.source, reading.imports, ranks, environ)


def _refuse_missing(source: Source, used: Mapping[str, int]) -> None:
    """Refuse a script whose imports are not installed: each rank would fail, after all of them have started."""
    shown = os.path.relpath(source.path)
    frameworks = [row for name in used if (row := installed.row(name)) is not None]
    for row in frameworks:
        if not installed.is_there(row.name) and not _is_own(source.path, row.name):
            raise UsageError(
                f"{shown}, line {used[row.name]}, imports {row.name}, which is not installed for {sys.executable}",
                hint=f"pip install {row.install}",
            )
    names = {row.name for row in frameworks}
    if not names - {"torch"}:
        return
    versions = installed.versions()
    broken = [each for each in installed.problems(versions, installed.torch_build(), "") if each.breaks]
    for problem in broken:
        if problem.package in names:
            raise UsageError(f"{shown} imports {problem.package}: {problem.text}", hint=problem.hint)
    _refuse_trainer_without_accelerate(source)


def _is_own(path: str, name: str) -> bool:
    folder = os.path.dirname(path)
    return any(os.path.exists(os.path.join(folder, entry)) for entry in (name, name + ".py"))


def _refuse_trainer_without_accelerate(source: Source) -> None:
    """Refuse a Transformers Trainer without accelerate: pip installs one without the other."""
    if installed.is_there("accelerate") or not source.calls(("transformers.Trainer", "transformers.Seq2SeqTrainer")):
        return
    wanted = installed.requirement("transformers", "accelerate")
    raise UsageError(
        f"{os.path.relpath(source.path)} uses transformers.Trainer, which needs accelerate{wanted}, but "
        "accelerate is not installed",
        hint="pip install 'echelon[hf]'",
    )


def _refuse_configuration(job: Job, source: Source, num_ranks: int) -> None:
    path = named_in(job.command.arguments)
    environ = dict(job.environ)
    path = path or environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "")
    if not path:
        path = next((value for name, key in DEEPSPEED_FILES for call in source.calls((name,))
                     if isinstance(value := call.arguments.get(key), str) and value.endswith(".json")), "")  # fmt: skip
    if path:
        refuse_wrong(path, num_ranks, os.getcwd())


def _refuse_numbers_of_trainer(source: Source, ranks: Ranks) -> None:
    """Refuse a Lightning Trainer whose numbers differ from those of the ranks; one matching call is enough."""
    calls = [call for call in source.calls(TRAINERS) if not call.has_more]
    if not calls or len(calls) < len(source.calls(TRAINERS)):
        return
    wrong = [(call, text) for call in calls if (text := _wrong_numbers(call, ranks))]
    if len(wrong) < len(calls):
        return
    call, text = wrong[0]
    trainer = call.name.rpartition(".")[2]
    per_node, nodes = ranks.per_node, ranks.num_nodes
    devices = _devices(call, ranks)
    several = f", num_nodes={nodes}" if nodes > 1 else ""
    repair = f"{trainer}(devices={per_node}{several}, …)"
    if devices and devices != per_node and devices > 1:
        repair = f"echelon run -n {devices} {shlex.quote(os.path.relpath(source.path))} …   or {repair}"
    raise UsageError(f"{os.path.relpath(source.path)}, line {call.line}: {text}", hint=repair)


def _wrong_numbers(call: Call, ranks: Ranks) -> str:
    """Return what is wrong with the numbers of one call; empty if they fit or cannot be read."""
    name = call.name.rpartition(".")[2]
    per_node, nodes = ranks.per_node, ranks.num_nodes
    number = counted(per_node, "rank")
    devices, num_nodes = _devices(call, ranks), call.arguments.get("num_nodes", 1)
    if devices and devices != per_node:
        value = call.arguments.get("devices", "auto")
        if devices == 1 and per_node > 1:
            said = f"{name}(devices={value!r})" if "devices" in call.arguments else f"{name}() without devices"
            return f"{said} means one device here, so each of {number} on a node would train alone"
        return f"{name}(devices={value!r}) does not match this run, which has {number} on each node"
    if isinstance(num_nodes, int) and num_nodes != nodes:
        said = f"{name}(num_nodes={num_nodes})" if "num_nodes" in call.arguments else f"{name}() without num_nodes"
        return f"{said} is for {counted(num_nodes, 'node')}, but this run has {nodes}"
    return ""


def _devices(call: Call, ranks: Ranks) -> int:
    """Return the number of devices per node that the call asks for; 0 if reading cannot tell."""
    devices = call.arguments.get("devices", "auto")
    accelerator = call.arguments.get("accelerator", "auto")
    if devices is UNKNOWN or accelerator is UNKNOWN:
        return 0
    if isinstance(devices, list):
        return len(devices)
    text = str(devices)
    if text not in ("auto", "-1", "None"):
        return digits.whole(text)
    if accelerator == "cpu" or (accelerator == "auto" and not ranks.devices_per_node):
        return 1  # Lightning takes one process if it counts CPUs
    return (1 if ranks.visible == "own" else ranks.devices_per_node) if accelerator in ("auto", "gpu", "cuda") else 0


def _refuse_ranks_of_mpi(job: Job, source: Source, imports: Imports, ranks: Ranks, environ: Mapping[str, str]) -> None:
    """Refuse ranks that only MPI can connect, unless they also meet in another way."""
    if source.mentions("init_process_group"):
        return
    name, why, repair = "mpi4py", "", ""
    if not job.mpi and name in source.certain_imports and source.mentions("COMM_WORLD"):
        why = "COMM_WORLD holds only ranks that MPI starts"
    elif not _is_own(source.path, "horovod"):
        name, (why, repair) = "horovod", horovod.why_alone(job, imports, environ)
    if not why:
        return
    shown = os.path.relpath(source.path)
    place = f", line {source.all_imports[name]}," if name in source.all_imports else ""
    program = f"python -m {job.command.target}" if job.command.kind == "module" else f"python {shlex.quote(shown)}"
    started = f"echelon run -- mpirun -n {ranks.num_ranks or 'RANKS'} {program} …"
    raise UsageError(
        f"{shown}{place} imports {name}: {why}; each of {ranks.num_ranks or 'the'} ranks"
        f"{'' if job.mpi else ' that echelon starts'} would be alone",
        hint=repair if job.mpi else f"{repair}, then: {started}" if repair else started,
    )


def _notes_of_jax(source: Source, ranks: Ranks) -> tuple[str, ...]:
    """Return a note for an `initialize()` without numbers of ranks: outside of Slurm, JAX cannot find them."""
    if ranks.where == "slurm":
        return ()
    for call in source.calls(("jax.distributed.initialize",)):
        if not call.has_more and call.arguments.keys().isdisjoint(NAMES_RANKS_OF_JAX):
            return (
                f"{os.path.relpath(source.path)}, line {call.line}: jax.distributed.initialize() gets the "
                "number of ranks from Slurm, but this is not a Slurm job: give it "
                "num_processes=int(os.environ['JAX_NUM_PROCESSES']) and "
                "process_id=int(os.environ['JAX_PROCESS_ID'])",
            )
    return ()


def _refuse_set_cluster(environ: Mapping[str, str], num_ranks: int) -> None:
    """Refuse a TF_CONFIG of the user's: every rank would get it, and all would be the same worker."""
    text = environ.get("TF_CONFIG", "")
    if not text:
        return
    try:
        config = json.loads(text)
        task, workers = config["task"], len(config["cluster"]["worker"])
        said = f"says that this is {task['type']} {task['index']} of {workers}"
    except (ValueError, LookupError, TypeError):
        said = "is not JSON with cluster and task"
    receivers = f"each of {num_ranks} ranks" if num_ranks else "each rank"
    raise UsageError(
        f"TF_CONFIG is set and {said}; every rank would read the same value, but echelon gives {receivers} its own",
        hint="unset TF_CONFIG",
    )


OPTIONS = ("--deepspeed_config", "--deepspeed-config", "--deepspeed")
"""Options that pass the file to scripts; the last is Transformers' own, and a mere flag of DeepSpeed."""
BATCH, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
SPLITTING = ("sequence_parallel_size", "tensor_parallel", "pipeline")
"""Keys that make several ranks share one part of the batch."""
WIDTH = 80
ANSWER_SECONDS = 30.0
TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|(?:#|//)[^\n]*|/\*.*?\*/', re.DOTALL)
"""Match a quoted text, which stays, or a comment."""


def named_in(arguments: Sequence[str]) -> str:
    """Return the configuration file that a command line names; empty if none."""
    for place, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in OPTIONS:
            value = value if equals else (arguments[place + 1 : place + 2] or [""])[0]
            if value.endswith(".json") and not value.startswith("-"):
                return value
    return ""


def refuse_wrong(path: str, num_ranks: int, cwd: str) -> None:
    """Raise UsageError for a file that is missing or invalid, or whose batch sizes do not fit the ranks."""
    full = os.path.join(cwd, path)
    try:
        text = regular_files.read_text(full)
    except OSError as error:
        raise _unreadable(path, full, error) from None
    settings = _parsed(text, path, full)
    if isinstance(settings, dict) and num_ranks:
        refuse_wrong_batch(settings, num_ranks, path)


def _unreadable(path: str, full: str, error: OSError) -> UsageError:
    import difflib  # only an error pays these 5 ms

    folder, name = os.path.split(full)
    try:
        others = [entry for entry in os.listdir(folder) if entry.endswith(".json")]
    except OSError:
        others = []
    near = difflib.get_close_matches(name, others, n=2) or sorted(others)[:4]
    hint = f"the nearest names there: {', '.join(near)}" if near else f"ls {folder}"
    return UsageError(f"echelon cannot read DeepSpeed's configuration {path}: {error.strerror}", hint=hint)


def _parsed(text: str, path: str, full: str) -> object:
    """Return the content of the file; DeepSpeed reads Hjson, which accepts more than JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        wrong = error
    settings = _asked(full) if installed.is_there("hjson") else _lenient(text)
    if settings is not None:
        return settings
    line = ""
    if isinstance(wrong, json.JSONDecodeError):
        where = f", line {wrong.lineno}, column {wrong.colno}: {wrong.msg}"
        line = "".join(text.splitlines()[wrong.lineno - 1 : wrong.lineno]).strip()[:WIDTH]
    else:
        where = f": {wrong}"
    raise UsageError(
        f"{path} is not valid JSON{where}", details=f"    {line}" if line else "", hint=f"python -m json.tool {path}"
    )


def _asked(full: str) -> object:
    """Return the file as DeepSpeed's own reader parses it; None if that fails."""
    code = "import hjson, json, sys; print(json.dumps(hjson.load(open(sys.argv[1]))))"
    done = Host().ask([sys.executable, "-c", code, full], timeout_seconds=ANSWER_SECONDS)
    return json.loads(done.stdout) if done.exit_code == 0 else None


def _lenient(text: str) -> object:
    """Parse JSON with comments, trailing commas or missing commas between lines; return None for other errors."""
    kept = TOKEN.sub(lambda found: found.group() if found.group().startswith('"') else "", text)
    lines = "\n".join(line.rstrip() for line in kept.splitlines() if line.strip())
    joined = re.sub(r'(["\d\]}el])\n(\s*")', r"\1,\n\2", lines)
    try:
        return json.loads(re.sub(r",(\s*[}\]])", r"\1", joined))
    except ValueError:
        return None


def refuse_wrong_batch(settings: Mapping[str, object], num_ranks: int, path: str) -> None:
    """Raise UsageError if batch = micro-batch × accumulation × ranks cannot hold."""
    if any(key in settings for key in SPLITTING):
        return
    batch, micro, steps = (_number(settings, key) for key in (BATCH, MICRO, STEPS))
    if batch is None or any(settings.get(key) == "auto" for key in (BATCH, MICRO, STEPS)):
        return
    shared = (micro or 1) * (steps or 1) * num_ranks
    fits = batch == shared if micro and steps else batch % shared == 0 and batch >= shared
    if fits:
        return
    known = [f"{value} ({key})" for key, value in ((MICRO, micro), (STEPS, steps)) if value]
    product = " × ".join([*known, f"{num_ranks} ranks"])
    does = f"is not {product} = {shared}" if micro and steps else f"is not a multiple of {product} = {shared}"
    raise UsageError(
        f"{path}: {BATCH} {batch} {does}, so DeepSpeed would stop in every rank",
        hint=f'"{BATCH}": {shared if micro and steps else max(1, round(batch / shared)) * shared}   or remove it: '
        f'DeepSpeed computes it from "{MICRO}"',
    )


def _number(settings: Mapping[str, object], key: str) -> int | None:
    value = settings.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
