"""horovodrun: its line gives the layout; ranks meet through a store that echelon serves, or through MPI."""

from __future__ import annotations

import importlib.util
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from echelon.dialects import mpi
from echelon.dialects.line import Grammar, Line, MpiStart, command, read, whole
from echelon.errors import UsageError
from echelon.spec import Job, Plan, Reason

if TYPE_CHECKING:
    from echelon.script.imports import Imports


# horovod 0.28.1, horovod/runner/launch.py
GRAMMAR = Grammar(
    launcher="horovodrun",
    flags=frozenset(
        {"verbose", "gloo", "mpi", "jsrun", "disable-cache", "tcp", "autotune", "no-autotune",
         "hierarchical-allreduce", "no-hierarchical-allreduce", "hierarchical-allgather",
         "no-hierarchical-allgather", "torus-allreduce", "no-torus-allreduce", "timeline-mark-cycles",
         "no-timeline-mark-cycles", "stall-check", "no-stall-check", "log-with-timestamp", "log-without-timestamp",
         "check-build"}
    ),
    values=frozenset(
        {"num-proc", "hosts", "hostfile", "ssh-port", "ssh-identity-file", "start-timeout", "network-interfaces",
         "nics", "output-filename", "config-file", "mpi-args", "binding-args", "fusion-threshold-mb",
         "cycle-time-ms", "cache-capacity", "autotune-log-file", "autotune-warmup-samples",
         "autotune-steps-per-sample", "autotune-bayes-opt-max-samples", "autotune-gaussian-process-noise",
         "timeline-filename", "stall-check-warning-time-seconds", "stall-check-shutdown-time-seconds",
         "mpi-threads-disable", "num-nccl-streams", "gloo-timeout-seconds", "log-level", "thread-affinity",
         "min-np", "max-np", "min-num-proc", "max-num-proc", "slots-per-host", "slots", "elastic-timeout",
         "reset-limit", "blacklist-cooldown-range", "host-discovery-script"}
    ),
    short={"-np": "num-proc", "-H": "hosts", "-hostfile": "hostfile", "-v": "verbose", "-p": "ssh-port",
           "-i": "ssh-identity-file"},
)  # fmt: skip
ELASTIC = ("min-np", "max-np", "min-num-proc", "max-num-proc", "host-discovery-script")
EXAMPLE = "echelon run -- horovodrun -np 4 python train.py"


def line(name: str, program: str, words: Sequence[str]) -> Line:
    """Read the line; the launcher keeps its options and starts our agents instead of the program."""
    arguments = read(words, GRAMMAR, example=EXAMPLE)
    elastic = next((given for given in arguments.given if given.key in ELASTIC), None)
    if elastic is not None:
        raise UsageError(
            f"horovodrun {elastic.text}: echelon does not add or remove nodes during a run",
            hint="echelon run -- horovodrun -np 4 …",
        )
    total = arguments.last("num-proc")
    if total is None:
        raise UsageError("horovodrun needs -np, the number of ranks", hint=EXAMPLE)
    pool: dict[str, int] = {}
    if arguments.has("hosts"):
        pool = mpi.read_list(arguments.value("hosts"), launcher=name)
    elif arguments.has("hostfile"):
        pool = mpi.read_file(arguments.value("hostfile"), launcher=name)
    return Line(
        launcher=name,
        command=command(name, arguments.rest, example=EXAMPLE),
        num_ranks=whole(name, total),
        num_ranks_text=total.text,
        hosts=tuple(host for host in pool if host not in mpi.HERE),
        mpi=MpiStart(kind="horovodrun", words=(program, *words[: len(words) - len(arguments.rest)])),
    )


STORE = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
"""The address of another launcher's store; a Horovod built with gloo contains this name."""
CONTROLLER = "HOROVOD_CONTROLLER"


def with_store(job: Job, plan: Plan, imports: Imports, environ: Mapping[str, str]) -> Plan:
    """Return the plan, with a store for its ranks if the script uses Horovod."""
    is_alone = plan.num_nodes * plan.ranks_per_node == 1
    by_mpi = job.launcher is not None and bool(job.launcher.mpi)
    if is_alone or by_mpi or STORE in environ or not _is_imported(imports) or why_only_mpi(job, environ):
        return plan
    why = "the script imports it, and rank 0's agent does the work of horovodrun"
    return replace(
        plan, serves_horovod=True, reasons=(*plan.reasons, Reason(what="horovod", value="meets by gloo", why=why))
    )


def _is_imported(imports: Imports) -> bool:
    """Say whether the script or one of its own modules imports Horovod anywhere."""
    return "horovod" in imports.uses | {name.partition(".")[0] for name in imports.local}


def why_only_mpi(job: Job, environ: Mapping[str, str]) -> str:
    """Return why the ranks can meet only through MPI; empty if gloo works, or if the build cannot be read."""
    if environ.get(CONTROLLER, "").casefold() == "mpi":
        return f"{CONTROLLER}={environ[CONTROLLER]} is set"
    libraries = [] if job.container else list(_libraries())
    if libraries and not any(_has(library, STORE.encode()) for library in libraries):
        return "this Horovod is built without gloo"
    return ""


def _libraries() -> Iterator[str]:
    """Yield Horovod's compiled libraries, one for each framework that it was built for."""
    try:
        spec = importlib.util.find_spec("horovod")
    except (ImportError, ValueError):
        return
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for framework in ("torch", "tensorflow", "mxnet"):
            try:
                names = os.listdir(os.path.join(folder, framework))
            except OSError:
                continue
            yield from (os.path.join(folder, framework, name) for name in names if name.endswith(".so"))


def _has(path: str, text: bytes) -> bool:
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(text) >= 0
    except (OSError, ValueError):
        return True  # a file that cannot be read tells nothing
