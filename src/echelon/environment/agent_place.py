"""Find the place of an agent that Slurm, mpirun or mpiexec started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from . import variables


class AgentTask(NamedTuple):
    """An agent's place among the tasks of its step."""

    agent_index: int
    node_rank: int
    local_rank: int
    node: str
    local_world_size: int = 0  # if the launcher itself states the number on this node


def agent_task(environ: Mapping[str, str]) -> AgentTask | None:
    """Return the place of this task; None outside of a Slurm step."""
    if "SLURM_PROCID" not in environ:
        return None
    return AgentTask(
        agent_index=variables.number(environ, "SLURM_PROCID"),
        node_rank=variables.number(environ, "SLURM_NODEID"),
        local_rank=variables.number(environ, "SLURM_LOCALID"),
        node=environ.get("SLURMD_NODENAME", ""),
    )


def is_slurm_job(environ: Mapping[str, str]) -> bool:
    """Say whether this process runs in a Slurm job, whose cores and devices are its own."""
    return "SLURM_JOB_ID" in environ


def job_id(environ: Mapping[str, str]) -> str:
    """Return the number of the job; empty outside of a job."""
    return environ.get("SLURM_JOB_ID", "")


def mpi_task(environ: Mapping[str, str]) -> AgentTask:
    """Return the place of this agent among all agents; raise SurroundingError if its launcher does not tell."""
    node = environ.get("SLURMD_NODENAME", "")  # the daemon that Slurm started on this node
    from .surroundings import filled_by_mpi

    started, node_rank = filled_by_mpi(environ)
    return AgentTask(started.rank, node_rank, started.local_rank, node, started.local_world_size)
