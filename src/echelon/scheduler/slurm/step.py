"""The Slurm step that starts every agent of a run, and the MPI protocols that it supports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from echelon.errors import EchelonError
from echelon.host import Host

# srun reads the allocation's options as defaults, and they would change our step:
# one task per node that sees all of the job's devices and cores on that node.
_SHAPES_OF_THE_JOB = (
    "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_SOCKET", "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_GPU", "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_TASKS_PER_NODE",
    "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_TRES_PER_TASK",
    "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_GPUS_PER_SOCKET", "SLURM_DISTRIBUTION", "SLURM_CPU_BIND",
    "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_VERBOSE", "SLURM_MEM_BIND", "SLURM_MEM_BIND_TYPE",
    "SLURM_MEM_BIND_LIST", "SLURM_MEM_BIND_VERBOSE", "SLURM_HINT", "SLURM_THREADS_PER_CORE", "SLURM_EXACT",
    "SLURM_EXCLUSIVE", "SLURM_MPI_TYPE", "SLURM_LABELIO", "SLURM_KILL_BAD_EXIT", "SLURM_WAIT", "SLURM_EXPORT_ENV",
    "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_STDINMODE", "SLURM_RESV_PORTS", "SLURM_SRUN_MULTI", "SLURM_PROLOG",
    "SLURM_EPILOG", "SLURM_TASK_PROLOG", "SLURM_TASK_EPILOG", "SLURM_SPREAD_JOB", "SLURM_HOSTFILE",
    "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NODELIST",
    "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_LAUNCHER_PORT",
    "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_UMASK",
)  # fmt: skip


def step_command(
    *, num_nodes: int, tasks_per_node: int, devices_per_node: int, mpi: str = "none", outlives_nodes: bool = False
) -> tuple[str, ...]:
    """Return srun and its options; the agents' command follows."""
    return (
        "srun",
        f"--nodes={num_nodes}",
        f"--ntasks={num_nodes * tasks_per_node}",
        f"--ntasks-per-node={tasks_per_node}",
        "--cpu-bind=none",  # the agent needs all of the job's cores on its node
        # repeated, because a job with devices by task, or in total, would give this step a single device
        *((f"--gpus-per-node={devices_per_node}",) if devices_per_node else ()),
        f"--mpi={mpi}",
        "--overlap",  # beside other steps, and inside an interactive one
        "--export=ALL",
        "--kill-on-bad-exit=0",  # the supervisor judges an agent's end
        "--wait=0",
        *(("--no-kill",) if outlives_nodes else ()),  # agents on other nodes continue after a failure
        "--input=none",
        "--quit-on-interrupt",
    )


def on_one_node(step: Sequence[str], node: str) -> tuple[str, ...]:
    """Return the command of a step with one task on one node, with the other options of a step over several nodes.

    >>> on_one_node(("srun", "--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--overlap"), "nid005001")
    ('srun', '--nodes=1', '--ntasks=1', '--ntasks-per-node=1', '--overlap', '--nodelist=nid005001')
    """
    replaced = {"--nodes": "--nodes=1", "--ntasks": "--ntasks=1"}
    return (*(replaced.get(word.partition("=")[0], word) for word in step), f"--nodelist={node}")


def beside(job_id: str, *, has_terminal: bool) -> tuple[str, ...]:
    """Return the command of a step with one task in a job, beside its other steps; the program follows.

    >>> beside("4711", has_terminal=False)
    ('srun', '--jobid=4711', '--overlap', '--nodes=1', '--ntasks=1', '--mpi=none', '--quiet')
    """
    words = ("srun", f"--jobid={job_id}", "--overlap", "--nodes=1", "--ntasks=1", "--mpi=none", "--quiet")
    return (*words, "--pty") if has_terminal else words


def step_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for srun: the user's, without variables that would change the step."""
    return {name: value for name, value in environ.items() if name not in _SHAPES_OF_THE_JOB}


ANSWER_SECONDS = 20.0


def offered(host: Host) -> tuple[str, ...]:
    """Return the names of `srun --mpi=list`; empty if Slurm does not answer."""
    try:
        done = host.ask(["srun", "--mpi=list"], timeout_seconds=ANSWER_SECONDS)
    except EchelonError:
        return ()
    return read_list(done.stdout + done.stderr)


def loads(host: Host, name: str) -> bool:
    """Say whether Slurm can load a listed protocol: Debian lists pmix without the library that it needs."""
    command = ["srun", f"--mpi={name}", "--test-only", "--nodes=1", "--ntasks=1", "true"]
    try:
        done = host.ask(command, timeout_seconds=ANSWER_SECONDS)
    except EchelonError:
        return False
    return "Invalid MPI type" not in done.stdout + done.stderr


def read_list(said: str) -> tuple[str, ...]:
    r"""Parse one name a line after the heading; a later heading lists versions of the names above.

    >>> read_list("MPI plugin types are...\n\tpmix\n\tnone\nspecific pmix plugin versions available: pmix_v4\n")
    ('pmix', 'none')
    """
    return tuple(re.findall(r"^(?:srun:)?\s+([\w-]+)$", said, re.MULTILINE))
