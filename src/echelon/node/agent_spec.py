"""The specification of an agent, which it reads before it connects, and its place in the run."""

import json
import os
import socket
import sys
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ..environment import devices, threads
from ..environment.agent_place import agent_task, mpi_task
from . import private


class AgentSpec(NamedTuple):
    """The content of agent.json, and the secret."""

    run_id: str
    addresses: List[Tuple[str, int]]  # addresses of the supervisor
    argv: List[str]  # the command of each rank: [python, script, args…] or [program, args…]
    is_python: bool
    preload: List[str]
    own: List[str]  # top-level modules that are the script's own
    folder: str  # the first entry of the script's sys.path
    launch: str  # "warm", "exec" or "tasks"
    visible: str  # "all" or "own"
    scale: str  # the options of scaling as JSON; "": the script runs unchanged
    bind: str  # "auto", "strict" or "off"
    reserved: List[int]  # cores that the machine reserves
    settings: List[Tuple[str, str, bool]]  # name, value with {places}, whether the value names a folder to create
    ranks_per_node: int  # 0: one rank for each visible device
    environ: Dict[str, str]
    max_restarts: int
    connect_seconds: float
    refused_seconds: float  # how long all addresses may refuse before the supervisor counts as gone
    is_private_directory: bool  # whether this agent alone uses the directory, and removes it at the end
    forwards_signals: bool  # whether the agent must pass its own signals on to the ranks
    secret: bytes
    stdin: str = ""  # the standard input of one rank; "": none
    stdin_rank: int = -1  # the rank that reads it
    cpus_per_rank: int = 0  # hardware threads; 0: the rank's share of the node's
    rank_argument: str = ""  # prefix of the local rank in an extra first argument of each rank; "": no argument
    mpi: str = ""  # the program that starts the ranks of MPI: "mpirun", "horovodrun", Slurm's "pmix" …; "": the agent
    looks: Optional[Dict[str, Any]] = None  # the request of the survey beside the ranks; None: no survey
    store_address: str = ""  # the address at which the first agent serves the ranks' store; "": all interfaces
    hang_timeout: Union[float, str] = "off"  # seconds, "auto" or "off"
    is_step: bool = False  # whether the agents are tasks of a Slurm step
    may_use_horovod: bool = False  # whether the script's Python may have Horovod
    uses_pool: bool = True  # whether the ranks may be forked from what a pool of this node has imported
    staged: Sequence[str] = ()  # the folders of the copies on this node's own disk
    first_life: int = 0  # how many agents each place may have had under supervisors that were killed


def read(run_directory: str) -> AgentSpec:
    return AgentSpec(**read_fields(run_directory), secret=private.read_secret(run_directory))


def read_fields(run_directory: str) -> Dict[str, Any]:
    """Read the specification alone: the secret is removed once all agents have connected."""
    with open(os.path.join(run_directory, "agent.json"), encoding="utf-8") as file:
        fields: Dict[str, Any] = json.load(file)
    fields["addresses"] = [(host, port) for host, port in fields["addresses"]]
    return fields


def write(spec: AgentSpec, run_directory: str) -> None:
    """Write the specification and the secret, readable only by the user."""
    fields = spec._asdict()
    secret: bytes = fields.pop("secret")
    private.write(os.path.join(run_directory, "agent.json"), json.dumps(fields, indent=1).encode())
    private.write_secret(run_directory, secret)


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
