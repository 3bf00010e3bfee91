"""srun: its tasks are the ranks; echelon starts a step of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from echelon.dialects.line import Given, Grammar, LauncherLine, MpiStart, Read, command, read, whole, without_meaning
from echelon.environment import digits
from echelon.errors import UsageError

# srun(1) of Slurm 22.05 to 25.05: options that guides use; options that ask for an allocation are refused
GRAMMAR = Grammar(
    launcher="srun",
    flags=frozenset({"label", "unbuffered", "overlap", "exclusive", "exact", "verbose", "quiet", "quit-on-interrupt",
                     "disable-status", "whole", "overcommit"}),
    values=frozenset(
        {"nodes", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "cpus-per-task", "cpus-per-gpu", "cpu-bind",
         "mem-bind", "gpus", "gpus-per-node", "gpus-per-task", "gpu-bind", "gres", "mem", "mem-per-cpu",
         "mem-per-gpu", "mpi", "export", "distribution", "hint", "threads-per-core", "kill-on-bad-exit",
         "wait", "output", "error", "input", "chdir", "job-name", "time", "network", "tres-per-task",
         "gres-flags", "partition", "account", "qos", "constraint", "reservation", "nodelist", "exclude",
         "jobid", "container-image", "container-mounts", "het-group"}
    ),
    short={"-N": "nodes", "-n": "ntasks", "-c": "cpus-per-task", "-G": "gpus", "-l": "label", "-u": "unbuffered",
           "-m": "distribution", "-K": "kill-on-bad-exit", "-W": "wait", "-o": "output", "-e": "error", "-i": "input",
           "-D": "chdir", "-J": "job-name", "-t": "time", "-p": "partition", "-A": "account", "-q": "qos",
           "-C": "constraint", "-w": "nodelist", "-x": "exclude", "-v": "verbose", "-Q": "quiet"},
)  # fmt: skip
EXAMPLE = "echelon run -- srun --ntasks-per-node=4 python train.py"
_BINDS = "--bind binds ranks"
_ALLOCATED = "it chooses an allocation, but this srun runs inside one"
_LOGS = "every rank has its own log in the run directory"
NO_MEANING = {
    "label": "see --show all", "unbuffered": "output is always live", "cpu-bind": _BINDS, "mem-bind": _BINDS,
    "distribution": _BINDS, "hint": _BINDS, "gpu-bind": "use --visible own", "output": _LOGS, "error": _LOGS,
    "input": "standard input of every rank is empty", "kill-on-bad-exit": "the first failure ends all ranks",
    "wait": "the first failure ends all ranks", "time": "see --timeout", "job-name": _ALLOCATED,
    "partition": _ALLOCATED, "account": _ALLOCATED, "jobid": _ALLOCATED, "qos": _ALLOCATED, "constraint": _ALLOCATED,
    "reservation": _ALLOCATED, "mem": _ALLOCATED, "mem-per-cpu": _ALLOCATED, "mem-per-gpu": _ALLOCATED,
    "cpus-per-task": _BINDS, "cpus-per-gpu": _BINDS, "threads-per-core": _BINDS, "gres": _ALLOCATED,
    "gres-flags": _ALLOCATED, "gpus": _ALLOCATED, "gpus-per-node": _ALLOCATED, "network": _ALLOCATED,
    "overlap": "echelon's own step overlaps", "exclusive": _ALLOCATED, "exact": _ALLOCATED,
    "whole": _ALLOCATED, "verbose": "see the run directory", "quiet": "see the run directory",
    "quit-on-interrupt": "see the run directory", "disable-status": "see the run directory", "overcommit": _BINDS,
}  # fmt: skip
UNSUPPORTED = {
    "nodelist": "echelon takes the nodes of the allocation in their order: echelon run --nnodes 2 …",
    "exclude": "echelon takes the nodes of the allocation in their order: echelon run --nnodes 2 …",
    "container-image": "echelon run --container IMAGE …",
    "container-mounts": "echelon run --container IMAGE --container-bind SRC:DST …",
    "het-group": "echelon run in one component",
    "chdir": "cd there first",
    "ntasks-per-gpu": "echelon run -n RANKS …",
    "tres-per-task": "echelon run -n RANKS …",
}


def line(name: str, words: Sequence[str], inner: Callable[[Sequence[str]], LauncherLine | None]) -> LauncherLine:
    """Read the line; if srun starts another launcher once per node, that launcher determines the ranks."""
    arguments = read(words, GRAMMAR, example=EXAMPLE)
    for option in arguments.given:
        if option.key in UNSUPPORTED:
            raise UsageError(f"srun {option.text} has no counterpart here", hint=UNSUPPORTED[option.key])
    within = inner(arguments.rest)
    unused = without_meaning(arguments.given, NO_MEANING)
    if within is not None:
        return _around(arguments, within, unused)
    mpi = arguments.value("mpi")
    total = arguments.last("ntasks")
    return LauncherLine(
        launcher=name,
        command=command(name, arguments.rest, example=EXAMPLE),
        options=(*_nodes(arguments), *_tasks(arguments), *_own_device(arguments)),
        num_ranks=whole(name, total) if total is not None and not arguments.has("ntasks-per-node") else 0,
        num_ranks_text=total.text if total is not None else "",
        environ=_exported(arguments),
        mpi=MpiStart(kind=mpi) if mpi not in ("", "none") else None,
        no_meaning=unused,
    )


def _nodes(arguments: Read) -> tuple[Given, ...]:
    nodes = arguments.last("nodes")
    return () if nodes is None else (Given(key="nnodes", value=nodes.value.replace("-", ":"), text=nodes.text),)


def _tasks(arguments: Read) -> tuple[Given, ...]:
    tasks = arguments.last("ntasks-per-node")
    if tasks is None:
        return ()
    whole("srun", tasks)
    return (Given(key="nproc_per_node", value=tasks.value, text=tasks.text),)


def _own_device(arguments: Read) -> tuple[Given, ...]:
    option = arguments.last("gpus-per-task")
    if option is None:
        return ()
    if option.value.rpartition(":")[2] != "1":
        raise UsageError(f"srun {option.text}: a rank has one device here", hint="--gpus-per-task=1")
    return (Given(key="visible", value="own", text=option.text),)


def _exported(arguments: Read) -> tuple[tuple[str, str], ...]:
    words = arguments.value("export").split(",")
    return tuple((name, value) for name, equals, value in (word.partition("=") for word in words) if equals)


def _around(arguments: Read, within: LauncherLine, unused: tuple[tuple[str, str], ...]) -> LauncherLine:
    """Return the inner launcher's line: `srun --ntasks-per-node=1 torchrun …` starts one launcher on each node."""
    per_node = arguments.last("ntasks-per-node")
    total, nodes = arguments.last("ntasks"), arguments.last("nodes")
    tasks = whole("srun", per_node) if per_node is not None else 1
    if per_node is None and total is not None and nodes is not None and digits.whole(nodes.value):
        tasks = whole("srun", total) // int(nodes.value)
    if tasks > 1:
        text = (per_node or total or Given(key="", value="", text="")).text
        raise UsageError(
            f"two launchers: srun {text} starts {tasks} of {within.launcher} on each node, and each would start all "
            "the ranks of its node",
            hint=f"srun --ntasks-per-node=1 {within.launcher} …   or without srun: echelon run -- {within.launcher} …",
        )
    if within.mpi is not None:
        raise UsageError(
            f"two launchers: srun and {within.launcher}", hint=f"remove one of them: echelon run -- {within.launcher} …"
        )
    kept = tuple(each for each in _nodes(arguments) if not any(other.key == "nnodes" for other in within.options))
    return replace(
        within,
        launcher=f"srun {within.launcher}",
        options=(*within.options, *kept),
        environ=(*_exported(arguments), *within.environ),
        no_meaning=(*unused, *within.no_meaning),
    )
