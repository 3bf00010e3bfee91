"""Nodes that a run keeps idle, to take the place of lost ones: `--spares N`."""

from __future__ import annotations

from dataclasses import replace

from echelon.errors import UsageError
from echelon.scheduler.protocol import Allocation
from echelon.spec import ALL_NODES, Job


def with_spares(job: Job, allocation: Allocation | None) -> Job:
    """Return the job with all nodes that it takes; raise UsageError if there are not enough for the spares."""
    if not job.num_spares:
        return job
    if job.launcher is not None and job.launcher.is_step:
        raise UsageError(
            f"--spares {job.num_spares}: {job.launcher.name} starts its ranks on all nodes at once, so none can wait",
            hint="without --spares, or start the script without its launcher",
        )
    num_there = _num_there(job, allocation)
    least = 1 if job.num_nodes == ALL_NODES else job.min_nodes
    if num_there < least + job.num_spares:
        raise _too_few(job, allocation, num_there, least)
    if job.num_nodes == ALL_NODES:
        return job
    return replace(job, num_nodes=job.num_nodes + job.num_spares, min_nodes=job.min_nodes + job.num_spares)


def _num_there(job: Job, allocation: Allocation | None) -> int:
    """Return the number of nodes that this run can take; nodes that are started by hand are as many as asked for."""
    if allocation is not None:
        return len(allocation.step_nodes if allocation.is_task else allocation.nodes)
    return job.num_nodes + job.num_spares if job.rendezvous and job.num_nodes != ALL_NODES else 1


def _too_few(job: Job, allocation: Allocation | None, num_there: int, least: int) -> UsageError:
    where = "this is a single machine" if allocation is None else f"job {allocation.job_id} has {num_there} node"
    where += "s" if allocation is not None and num_there != 1 else ""
    fewer = f"--spares {num_there - least} …   or " if num_there > least else ""
    return UsageError(
        f"--spares {job.num_spares}: {where}, and at least {least} must train, so {max(0, num_there - least)} can wait",
        hint=f"{fewer}a larger allocation: salloc --no-kill --nodes={least + job.num_spares} …",
    )


def num_active(job: Job, nodes: tuple[str, ...]) -> int:
    """Return the number of nodes that train; `job` is as asked, without its spares."""
    return len(nodes) - job.num_spares if nodes else job.num_nodes


def why(job: Job, text: str) -> str:
    """Add the spares to the reason for the nodes."""
    return f"{text}, {job.num_spares} of them spare" if job.num_spares else text
