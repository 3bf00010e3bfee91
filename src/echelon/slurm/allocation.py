"""Read the allocation that one stands in from its environment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from echelon.environment import hostlist
from echelon.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The job whose nodes are ours now."""

    job_id: str
    nodes: tuple[str, ...]
    devices: tuple[int, ...]
    """Devices of the job on each node; empty: Slurm does not say."""
    is_task: bool
    """Whether this process itself is a task of a running step: of several they meet, one stays on its node."""
    num_tasks: int
    task_rank: int
    step_nodes: tuple[str, ...]
    partition: str = ""
    tasks_per_node: int = 0
    """What the job asked for, and a plain srun would start on each node; 0: it did not say."""


def is_inside(environ: Mapping[str, str]) -> bool:
    """Say whether this process stands in an allocation, without a look at it."""
    has_nodes = bool(environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST"))
    return (bool(environ.get("SLURM_JOB_ID")) and has_nodes) or _num_components(environ) > 1


def read(environ: Mapping[str, str], devices_by_node: Callable[[str], Mapping[str, int]]) -> Allocation | None:
    """Return the allocation, or None outside of one; `devices_by_node` is asked for the job's devices."""
    if not is_inside(environ):
        return None
    is_task = _is_task(environ)
    if _num_components(environ) > 1 and not is_task:
        raise UsageError(
            f"this is a heterogeneous job of {environ['SLURM_HET_SIZE']} components, whose nodes have "
            "different devices and cores",
            hint="start echelon on each node of one component: srun --het-group=0 --ntasks-per-node=1 echelon run …",
        )
    job_id, node_text = environ["SLURM_JOB_ID"], environ.get("SLURM_JOB_NODELIST") or environ["SLURM_NODELIST"]
    nodes = hostlist.expand(node_text)
    devices = {} if is_task else devices_by_node(job_id)
    step_text = environ.get("SLURM_STEP_NODELIST", "") if is_task else ""
    return Allocation(
        job_id=job_id,
        nodes=tuple(nodes),
        devices=tuple(devices[node] for node in nodes) if all(node in devices for node in nodes) else (),
        is_task=is_task,
        num_tasks=int(environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS", "1")) if is_task else 1,
        task_rank=int(environ.get("SLURM_PROCID", "0")) if is_task else 0,
        step_nodes=tuple(hostlist.expand(step_text)),
        partition=environ.get("SLURM_JOB_PARTITION", ""),
        tasks_per_node=int(tasks) if (tasks := environ.get("SLURM_NTASKS_PER_NODE", "")).isdigit() else 0,
    )


def without(environ: Mapping[str, str], nodes: Collection[str]) -> dict[str, str]:
    """Return the environment of the same job as if it had not been given these nodes."""
    name = next(name for name in ("SLURM_JOB_NODELIST", "SLURM_NODELIST") if environ.get(name))
    return {**environ, name: ",".join(node for node in hostlist.expand(environ[name]) if node not in nodes)}


def _is_task(environ: Mapping[str, str]) -> bool:
    """Tell a task of a step from a batch script and a salloc shell."""
    step = environ.get("SLURM_STEP_ID", "")
    is_ordinary_step = step.isdigit() and int(step) < 0xFFFFFFF0  # batch, extern and interactive are above
    return is_ordinary_step and "SLURM_PROCID" in environ


def _num_components(environ: Mapping[str, str]) -> int:
    """Return how many jobs a heterogeneous one is made of; salloc's shell for one has no SLURM_JOB_ID."""
    return int(environ.get("SLURM_HET_SIZE", "1") or 1)
