"""The place of this agent in the run, as known before it connects."""

import os
import socket
import sys
from typing import Any, Dict, Mapping, NamedTuple

from ..environment import devices, threads
from ..environment.mpi_agent import mpi_task
from ..environment.slurm_agent import agent_task
from .agent_spec import AgentSpec


class Placement(NamedTuple):
    """An agent's place: its node, its local ranks, and the node's resources."""

    agent_index: int  # among all agents; -1: the supervisor chooses
    node_rank: int
    node: str
    first_local_rank: int
    num_ranks: int
    local_world_size: int
    num_cores: int
    num_devices: int

    def facts(self) -> Dict[str, Any]:
        """Return the facts of the agent's hello to the supervisor."""
        return {**self._asdict(), "agent_pid": os.getpid(), "python": sys.version.split()[0]}


def find(spec: AgentSpec, index: int, environ: Mapping[str, str]) -> Placement:
    """Find the placement: from the index on the command line, else from Slurm's variables of this task."""
    task = agent_task(environ) if index < 0 or spec.is_step else None
    if task is not None and index >= 0:  # an agent that was started again, in a step of its own
        task = task._replace(agent_index=index, node_rank=index)
    if spec.mpi in ("mpirun", "horovodrun"):
        task = mpi_task(environ)
    num_devices = len(devices.visible(environ))
    per_node = spec.ranks_per_node or max(1, num_devices)
    is_one_rank = spec.launch == "tasks"
    return Placement(
        agent_index=task.agent_index if task else index,
        node_rank=task.node_rank if task else index,
        node=(task.node if task else "") or socket.gethostname(),
        first_local_rank=task.local_rank if task and is_one_rank else 0,
        num_ranks=1 if is_one_rank else per_node,
        local_world_size=task.local_world_size or per_node if task else per_node,
        num_cores=threads.num_cores(),
        num_devices=num_devices,
    )
