"""Horovod: the line of horovodrun gives the layout, and its ranks meet through MPI."""

from __future__ import annotations

import importlib.util
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from echelon.dialects import mpi
from echelon.dialects.line import Grammar, LauncherLine, MpiStart, command, read, whole
from echelon.errors import UsageError
from echelon.spec import Job

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


def line(name: str, program: Sequence[str], words: Sequence[str]) -> LauncherLine:
    """Read the line; the launcher keeps its options and starts our agents, through MPI, instead of the program."""
    arguments = read(words, GRAMMAR, example=EXAMPLE)
    elastic = next((given for given in arguments.given if given.key in ELASTIC), None)
    if elastic is not None:
        raise UsageError(
            f"horovodrun {elastic.text}: echelon does not add or remove nodes during a run",
            hint="echelon run -- horovodrun -np 4 …",
        )
    if arguments.has("gloo"):
        raise UsageError(
            "horovodrun --gloo: horovodrun's rendezvous for gloo is not offered here",
            hint="remove --gloo, with a Horovod that is built with HOROVOD_WITH_MPI=1",
        )
    total = arguments.last("num-proc")
    if total is None:
        raise UsageError("horovodrun needs -np, the number of ranks", hint=EXAMPLE)
    pool: dict[str, int] = {}
    if arguments.has("hosts"):
        pool = mpi.read_list(arguments.value("hosts"), launcher=name)
    elif arguments.has("hostfile"):
        pool = mpi.read_file(arguments.value("hostfile"), launcher=name)
    by_mpi = () if arguments.has("mpi") or arguments.has("jsrun") else ("--mpi",)  # which a build without MPI refuses
    return LauncherLine(
        launcher=name,
        command=command(name, arguments.rest, example=EXAMPLE),
        num_ranks=whole(name, total),
        num_ranks_text=total.text,
        hosts=tuple(host for host in pool if host not in mpi.HERE),
        mpi=MpiStart(kind="horovodrun", words=(*program, *by_mpi, *words[: len(words) - len(arguments.rest)])),
    )


CONTROLLER = "HOROVOD_CONTROLLER"
_MPI = b"MPI_Init"  # a function that Horovod calls if it was built with MPI: horovod/common/mpi/mpi_context.cc
_TRAINERS = frozenset({"accelerate", "deepspeed", "lightning", "lightning_fabric", "pytorch_lightning"})
_MEETINGS = ("transformers.Trainer", "transformers.Seq2SeqTrainer", "tensorflow.distribute.", "jax.distributed.")
"""Packages and names by which a script may let its ranks meet without Horovod."""


def why_alone(job: Job, imports: Imports, environ: Mapping[str, str]) -> tuple[str, str]:
    """Return why several ranks of a script would not meet in hvd.init(), and the repair before it starts by MPI.

    The reason is empty if the ranks meet, or if reading cannot tell: the script may use something else than Horovod.
    """
    if "horovod" not in imports.all_uses or _may_meet_otherwise(imports):
        return "", ""
    if not job.container and _is_built_without_mpi():
        why, repair = "this Horovod is built with gloo alone", "build Horovod with HOROVOD_WITH_MPI=1"
    elif environ.get(CONTROLLER, "").casefold() == "gloo":
        why, repair = f"{CONTROLLER}={environ[CONTROLLER]} is set", f"unset {CONTROLLER}"
    else:
        return "" if job.mpi else "its ranks need MPI to meet", ""
    return f"{why}, and horovodrun's rendezvous for gloo is not offered here", repair


def _may_meet_otherwise(imports: Imports) -> bool:
    return not _TRAINERS.isdisjoint(imports.all_uses) or any(
        name.startswith(_MEETINGS) or name.endswith(".init_process_group") for name in imports.mentions
    )


def _is_built_without_mpi() -> bool:
    """Say whether Horovod is installed, and none of its libraries knows MPI."""
    libraries = list(_libraries())
    return bool(libraries) and not any(_has(library, _MPI) for library in libraries)


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
