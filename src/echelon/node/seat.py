"""Where this agent stands in the run, before the supervisor has said anything."""

import os
import platform
import socket
from typing import Any, Dict, Mapping, NamedTuple

from echelon.environment import devices, threads
from .order import Order


class Seat(NamedTuple):
    """One agent's place: which node, which local ranks, what the node offers."""

    index: int  # among all agents; -1: the supervisor chooses
    node_rank: int
    node: str
    first_local_rank: int
    num_ranks: int
    local_world_size: int
    num_cores: int
    num_devices: int

    def facts(self) -> Dict[str, Any]:
        """Return what the supervisor is told in the agent's hello."""
        return {**self._asdict(), "pid": os.getpid(), "python": platform.python_version(), "time": 0.0}


def find(order: Order, index: int, environ: Mapping[str, str]) -> Seat:
    """Find this agent's seat from Slurm's variables of its task, or from the index given on the command line."""
    visible = devices.visible(environ) or []
    num_cores = threads.num_cores()
    in_step = index < 0 and "SLURM_PROCID" in environ
    node = environ.get("SLURMD_NODENAME") if in_step else None
    node_rank = int(environ["SLURM_NODEID"]) if in_step else index
    if order.launch == "tasks":
        local_rank, num_ranks = int(environ["SLURM_LOCALID"]), 1
        local_world_size = order.ranks_per_node or max(1, len(visible))
    else:
        local_rank = 0
        num_ranks = local_world_size = order.ranks_per_node or max(1, len(visible))
    return Seat(
        index=int(environ["SLURM_PROCID"]) if in_step else index,
        node_rank=node_rank,
        node=node or socket.gethostname(),
        first_local_rank=local_rank,
        num_ranks=num_ranks,
        local_world_size=local_world_size,
        num_cores=num_cores,
        num_devices=len(visible),
    )
