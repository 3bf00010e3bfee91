"""What frameworks get wrong only after the start, found before it by reading the script and its configuration."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping

from echelon.errors import UsageError
from echelon.launch.frameworks import batch, installed
from echelon.script.calls import UNKNOWN, Call, Source, read
from echelon.script.find import Script
from echelon.spec import Job, Plan

TRAINERS = (
    "lightning.Trainer", "lightning.pytorch.Trainer", "pytorch_lightning.Trainer", "lightning.Fabric",
    "lightning.fabric.Fabric", "lightning_fabric.Fabric",
)  # fmt: skip
DEEPSPEED_FILES = (("deepspeed.initialize", "config"), ("deepspeed.initialize", "config_params"),
                   ("transformers.TrainingArguments", "deepspeed"))  # fmt: skip
READS_DEEPSPEED = frozenset({"deepspeed", "transformers", "accelerate", "trl"})


def refuse(job: Job, plan: Plan, script: Script, environ: Mapping[str, str]) -> None:
    """Raise UsageError for what would fail, or train something else, in every rank."""
    source = read(script)
    if source is None:
        return
    used = source.certain_imports
    if not job.container and not source.moves_path:
        _refuse_missing(source, used)
    num_ranks = plan.num_nodes * plan.ranks_per_node
    if used.keys() & READS_DEEPSPEED:
        _refuse_configuration(job, source, num_ranks)
    if num_ranks:
        _refuse_numbers_of_trainer(source, plan)
    if num_ranks > 1 and not (job.launcher is not None and job.launcher.mpi):
        _refuse_ranks_of_mpi(job, source, num_ranks, {**environ, **dict(job.environ)})
    if "tensorflow" in used and num_ranks != 1 and plan.where != "meet":
        _refuse_set_cluster({**environ, **dict(job.environ)}, num_ranks)


def _refuse_missing(source: Source, used: Mapping[str, int]) -> None:
    """Refuse what cannot be imported: each rank would say so, after all of them have been started."""
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
    found = installed.versions()
    broken = [each for each in installed.problems(found, installed.torch_build(), "") if each.breaks]
    for problem in broken:
        if problem.package in names:
            raise UsageError(f"{shown} imports {problem.package}, and {problem.text}", hint=problem.hint)
    _refuse_trainer_without_accelerate(source)


def _is_own(path: str, name: str) -> bool:
    folder = os.path.dirname(path)
    return any(os.path.exists(os.path.join(folder, entry)) for entry in (name, name + ".py"))


def _refuse_trainer_without_accelerate(source: Source) -> None:
    """Transformers installs without accelerate, and its Trainer does not work without it."""
    if installed.is_there("accelerate") or not source.calls(("transformers.Trainer", "transformers.Seq2SeqTrainer")):
        return
    wanted = installed.requirement("transformers", "accelerate")
    raise UsageError(
        f"{os.path.relpath(source.path)} uses transformers.Trainer, which needs accelerate{wanted}, and it is not "
        "installed",
        hint="pip install 'echelon[hf]'",
    )


def _refuse_configuration(job: Job, source: Source, num_ranks: int) -> None:
    path = batch.named_in(job.command.arguments)
    environ = dict(job.environ)
    path = path or environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "")
    if not path:
        path = next((value for name, key in DEEPSPEED_FILES for call in source.calls((name,))
                     if isinstance(value := call.arguments.get(key), str) and value.endswith(".json")), "")  # fmt: skip
    if path:
        batch.refuse_wrong(path, num_ranks, os.getcwd())


def _refuse_numbers_of_trainer(source: Source, plan: Plan) -> None:
    """Lightning's own count of devices and nodes must be that of the ranks; one call that fits is enough."""
    calls = [call for call in source.calls(TRAINERS) if not call.has_more]
    if not calls or len(calls) < len(source.calls(TRAINERS)):
        return
    wrong = [(call, text) for call in calls if (text := _wrong_numbers(call, plan))]
    if len(wrong) < len(calls):
        return
    call, text = wrong[0]
    what = call.name.rpartition(".")[2]
    per_node, nodes = plan.ranks_per_node, plan.num_nodes
    devices = _devices(call, plan)
    several = f", num_nodes={nodes}" if nodes > 1 else ""
    repair = f"{what}(devices={per_node}{several}, …)"
    if devices and devices != per_node and devices > 1:
        repair = f"echelon run -n {devices} {shlex.quote(os.path.relpath(source.path))} …   or {repair}"
    raise UsageError(f"{os.path.relpath(source.path)}, line {call.line}: {text}", hint=repair)


def _wrong_numbers(call: Call, plan: Plan) -> str:
    """Return what is wrong with the numbers of one call; empty where they fit or cannot be read."""
    what = call.name.rpartition(".")[2]
    per_node, nodes = plan.ranks_per_node, plan.num_nodes
    ranks = f"{per_node} rank{'s' if per_node != 1 else ''}"
    devices, num_nodes = _devices(call, plan), call.arguments.get("num_nodes", 1)
    if devices and devices != per_node:
        given = call.arguments.get("devices", "auto")
        if devices == 1 and per_node > 1:
            said = f"{what}(devices={given!r})" if "devices" in call.arguments else f"{what}() without devices"
            return f"{said} is one device here, so that each of {ranks} on a node would train alone"
        return f"{what}(devices={given!r}), and this run has {ranks} on each node"
    if isinstance(num_nodes, int) and num_nodes != nodes:
        said = f"{what}(num_nodes={num_nodes})" if "num_nodes" in call.arguments else f"{what}() without num_nodes"
        return f"{said} is for {num_nodes} node{'s' if num_nodes != 1 else ''}, and this run has {nodes}"
    return ""


def _devices(call: Call, plan: Plan) -> int:
    """Return how many devices the call means on each node; 0 where reading cannot tell."""
    given = call.arguments.get("devices", "auto")
    accelerator = call.arguments.get("accelerator", "auto")
    if given is UNKNOWN or accelerator is UNKNOWN:
        return 0
    if isinstance(given, list):
        return len(given)
    text = str(given)
    if text not in ("auto", "-1", "None"):
        return int(text) if text.isdigit() else 0
    if accelerator == "cpu" or (accelerator == "auto" and not plan.devices_per_node):
        return 1  # Lightning takes one process where it counts CPUs
    return (1 if plan.visible == "own" else plan.devices_per_node) if accelerator in ("auto", "gpu", "cuda") else 0


def _refuse_ranks_of_mpi(job: Job, source: Source, num_ranks: int, environ: Mapping[str, str]) -> None:
    """Refuse ranks that only their own launcher makes known to each other, unless they meet through torch as well."""
    used = source.certain_imports
    if source.mentions("init_process_group"):
        return
    if "mpi4py" in used and source.mentions("COMM_WORLD"):
        name, launcher = "mpi4py", f"mpirun -n {num_ranks}"
        said = f"COMM_WORLD has the ranks that MPI has started; each of {num_ranks} that echelon starts would be alone"
    elif "horovod" in used and source.mentions("init") and "HOROVOD_GLOO_RENDEZVOUS_ADDR" not in environ:
        name, launcher = "horovod", f"horovodrun -np {num_ranks}"
        said = f"its ranks meet through horovodrun or MPI; {num_ranks} that echelon starts would wait, or be alone"
    else:
        return
    shown = os.path.relpath(source.path)
    program = f"python -m {job.command.target}" if job.command.kind == "module" else f"python {shlex.quote(shown)}"
    raise UsageError(
        f"{shown}, line {used[name]}, imports {name}: {said}", hint=f"echelon run -- {launcher} {program} …"
    )


def _refuse_set_cluster(environ: Mapping[str, str], num_ranks: int) -> None:
    """A TF_CONFIG of the user's reaches every rank alike, so that all would be the same worker."""
    text = environ.get("TF_CONFIG", "")
    if not text:
        return
    try:
        config = json.loads(text)
        task, workers = config["task"], len(config["cluster"]["worker"])
        said = f"says that this is {task['type']} {task['index']} of {workers}"
    except (ValueError, LookupError, TypeError):
        said = "is no JSON with cluster and task"
    each = f"each of {num_ranks} ranks" if num_ranks else "each rank"
    raise UsageError(
        f"TF_CONFIG is set and {said}; every rank would believe it alike, and echelon gives {each} its own",
        hint="unset TF_CONFIG",
    )
