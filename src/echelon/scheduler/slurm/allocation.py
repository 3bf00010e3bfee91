"""Read the current allocation, and Slurm's other variables, from the environment."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Mapping

from echelon.environment import digits, hostlist, variables
from echelon.errors import EchelonError, UsageError
from echelon.host import Host
from echelon.scheduler.protocol import Allocation
from echelon.units import counted

_SPECIAL_STEP = 0xFFFFFFF0  # from here on: batch, extern and interactive


def is_inside(environ: Mapping[str, str]) -> bool:
    """Say whether this process runs in an allocation, without reading it."""
    has_nodes = bool(environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST"))
    return (bool(environ.get("SLURM_JOB_ID")) and has_nodes) or _num_components(environ) > 1


def read(environ: Mapping[str, str], devices_by_node: Callable[[str], Mapping[str, int]]) -> Allocation | None:
    """Return the allocation; None outside of one. `devices_by_node` returns the job's devices."""
    if not is_inside(environ):
        return None
    step = environ.get("SLURM_STEP_ID", "")
    is_ordinary_step = digits.whole(step, _SPECIAL_STEP) < _SPECIAL_STEP
    is_task = is_ordinary_step and "SLURM_PROCID" in environ
    if _num_components(environ) > 1 and not is_task:
        raise UsageError(
            f"this is a heterogeneous job of {environ['SLURM_HET_SIZE']} components, whose nodes have "
            "different devices and cores",
            hint="start echelon on each node of one component: srun --het-group=0 --ntasks-per-node=1 echelon run …",
        )
    node_list = variables.present(environ, "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    nodes = hostlist.expand(environ[node_list])
    job_id = str(variables.number(environ, "SLURM_JOB_ID"))
    # within a step, including an interactive one, this is the number of the step's nodes
    of_job = () if environ.get("SLURM_STEP_ID") else ("SLURM_NNODES",)
    for count in ("SLURM_JOB_NUM_NODES", *of_job):
        if environ.get(count):
            _refuse_other_number(environ, count, node_list, len(nodes))
    devices = {} if is_task else devices_by_node(job_id)
    num_tasks, task_rank, step_nodes = _step(environ) if is_task else (1, 0, ())
    return Allocation(
        job_id=job_id,
        nodes=tuple(nodes),
        devices=tuple(devices[node] for node in nodes) if all(node in devices for node in nodes) else (),
        is_task=is_task,
        num_tasks=num_tasks,
        task_rank=task_rank,
        step_nodes=step_nodes,
        partition=environ.get("SLURM_JOB_PARTITION", ""),
        tasks_per_node=digits.whole(environ.get("SLURM_NTASKS_PER_NODE", "")),
    )


def _step(environ: Mapping[str, str]) -> tuple[int, int, tuple[str, ...]]:
    """Return the number of tasks, this task's number, and the nodes of the step; refuse contradictory variables."""
    total = variables.present(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    num_tasks, task_rank = variables.number(environ, total), variables.number(environ, "SLURM_PROCID")
    if task_rank >= num_tasks:
        raise _disagree(f"SLURM_PROCID={task_rank} is a task of {total}={num_tasks}, whose last is {num_tasks - 1}")
    nodes = tuple(hostlist.expand(environ[variables.present(environ, "SLURM_STEP_NODELIST")]))
    if environ.get("SLURM_STEP_NUM_NODES"):
        _refuse_other_number(environ, "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST", len(nodes))
    if environ.get("SLURM_STEP_TASKS_PER_NODE"):
        counts = hostlist.expand_counts(environ["SLURM_STEP_TASKS_PER_NODE"])
        if (len(counts), sum(counts)) != (len(nodes), num_tasks):
            raise _disagree(
                f"SLURM_STEP_TASKS_PER_NODE={environ['SLURM_STEP_TASKS_PER_NODE']} is {sum(counts)} tasks on "
                f"{len(counts)} nodes, and {total}={num_tasks} on {len(nodes)} nodes"
            )
    here = environ.get("SLURMD_NODENAME", "")
    if here and here not in nodes:
        raise _disagree(f"SLURMD_NODENAME={here} is none of SLURM_STEP_NODELIST={environ['SLURM_STEP_NODELIST']}")
    return num_tasks, task_rank, nodes


def _refuse_other_number(environ: Mapping[str, str], count: str, node_list: str, num_nodes: int) -> None:
    if variables.number(environ, count) != num_nodes:
        raise _disagree(
            f"{count}={environ[count]} and {node_list}={environ[node_list]}, which has {counted(num_nodes, 'node')}"
        )


def _disagree(contradiction: str) -> UsageError:
    return UsageError(
        f"Slurm's variables disagree: {contradiction}",
        hint="start again from the job's own shell: sbatch, salloc or srun set them; export none of them yourself",
    )


def without(environ: Mapping[str, str], nodes: Collection[str]) -> dict[str, str]:
    """Return the environment of the job without these nodes."""
    name = variables.present(environ, "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    left = [node for node in hostlist.expand(environ[name]) if node not in nodes]
    counts = dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), str(len(left)))
    return {**environ, name: ",".join(left), **counts}


def _num_components(environ: Mapping[str, str]) -> int:
    """Return the number of components of a heterogeneous job; salloc's shell for one has no SLURM_JOB_ID."""
    return variables.number(environ, "SLURM_HET_SIZE") if environ.get("SLURM_HET_SIZE") else 1


PROGRAMS = ("sbatch", "srun", "salloc", "sinfo")
"""Slurm's commands whose manual a user of echelon may want to read."""


def is_outside(environ: Mapping[str, str]) -> bool:
    """Say whether Slurm is here, and this process is in none of its jobs."""
    return shutil.which(PROGRAMS[0], path=environ.get("PATH")) is not None and not is_inside(environ)


def account(environ: Mapping[str, str]) -> str:
    """Return the account that the user's shell sets for sbatch or salloc; empty if none."""
    return next(
        (environ[name] for name in ("SBATCH_ACCOUNT", "SLURM_ACCOUNT", "SALLOC_ACCOUNT") if environ.get(name)), ""
    )


def cluster(environ: Mapping[str, str]) -> str:
    """Return the cluster's name from a job's environment; empty outside of a job."""
    return environ.get("SLURM_CLUSTER_NAME", "")


ASK_SECONDS = 5.0


def reach_ranks(host: Host) -> bool:
    """Say whether a signal to a step reaches ranks directly, so that an agent must not pass it on.

    proctrack/linuxproc signals all descendants of a step's tasks, proctrack/cgroup the tasks themselves (SIGKILL
    apart), which are the agents.
    """
    try:
        answer = host.ask(("scontrol", "show", "config"), timeout_seconds=ASK_SECONDS)
    except EchelonError:
        return False  # a repeated signal is better than a lost one
    return "proctrack/linuxproc" in answer.stdout
