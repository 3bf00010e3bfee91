"""horovodrun: its line gives the layout; it starts our agents, which find its rendezvous in their environment."""

from __future__ import annotations

from collections.abc import Sequence

from echelon.errors import UsageError
from echelon.launch.launchers import hosts
from echelon.launch.launchers.line import Line, MpiStart
from echelon.launch.launchers.program import command
from echelon.launch.launchers.words import Grammar, read, whole

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
        pool = hosts.read_list(arguments.value("hosts"), launcher=name)
    elif arguments.has("hostfile"):
        pool = hosts.read_file(arguments.value("hostfile"), launcher=name)
    return Line(
        launcher=name,
        command=command(name, arguments.rest, example=EXAMPLE),
        num_ranks=whole(name, total),
        num_ranks_text=total.text,
        hosts=tuple(host for host in pool if host not in hosts.HERE),
        mpi=MpiStart(kind="horovodrun", words=(program, *words[: len(words) - len(arguments.rest)])),
    )
