"""Find the rank of an agent that mpirun, mpiexec or horovodrun started instead of the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import variables
from .slurm_agent import AgentTask
from .surroundings import filled_by_mpi

if TYPE_CHECKING:
    from collections.abc import Mapping


def mpi_task(environ: Mapping[str, str]) -> AgentTask:
    """Return the place of this agent among all agents; raise SurroundingError if its launcher does not tell."""
    node = environ.get("SLURMD_NODENAME", "")  # the daemon that Slurm started on this node
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in environ:
        names = ("HOROVOD_RANK", "HOROVOD_CROSS_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
        rank, node_rank, local_rank, local_size = (variables.number(environ, name) for name in names)
        return AgentTask(rank, node_rank, local_rank, node, local_size)
    started, node_rank = filled_by_mpi(environ)
    return AgentTask(started.rank, node_rank, started.local_rank, node, started.local_world_size)
