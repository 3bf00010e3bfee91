"""Which of a step's tasks an agent is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from . import variables

if TYPE_CHECKING:
    from collections.abc import Mapping


class AgentTask(NamedTuple):
    """An agent's place among the tasks of its step."""

    agent_index: int
    node_rank: int
    local_rank: int
    node: str
    local_world_size: int = 0  # where the launcher itself says how many it has put on this node


def agent_task(environ: Mapping[str, str]) -> AgentTask | None:
    """Return the place of this task, or None outside of a Slurm step."""
    if "SLURM_PROCID" not in environ:
        return None
    return AgentTask(
        agent_index=variables.number(environ, "SLURM_PROCID"),
        node_rank=variables.number(environ, "SLURM_NODEID"),
        local_rank=variables.number(environ, "SLURM_LOCALID"),
        node=environ.get("SLURMD_NODENAME", ""),
    )


def is_slurm_job(environ: Mapping[str, str]) -> bool:
    """Tell whether the cores and devices here are a Slurm job's own."""
    return "SLURM_JOB_ID" in environ


def job_id(environ: Mapping[str, str]) -> str:
    """Return the number of the job; empty outside of one."""
    return environ.get("SLURM_JOB_ID", "")
