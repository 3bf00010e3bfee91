"""What an agent is told before it starts: read from the run directory, so that imports begin at once."""

import json
import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import private


class Order(NamedTuple):
    """What order.json holds, and the secret."""

    run_id: str
    addresses: List[Tuple[str, int]]  # where the supervisor listens
    argv: List[str]  # what each rank runs: [python, script, args…] or [program, args…]
    is_python: bool
    preload: List[str]
    own: List[str]  # top-level modules that are the script's own
    folder: str  # what Python will put first on sys.path
    launch: str  # "warm", "exec" or "tasks"
    visible: str  # "all" or "own"
    scale: str  # how the script is scaled, as JSON; "": it runs as it is
    bind: str  # "auto", "strict" or "off"
    reserved: List[int]  # cores that the machine keeps for itself
    settings: List[Tuple[str, str, bool]]  # name, value with {places}, whether it names a folder to be made
    ranks_per_node: int  # 0: one per visible device
    environ: Dict[str, str]
    max_restarts: int
    connect_seconds: float
    refused_seconds: float  # how long all addresses may refuse, before the supervisor counts as gone
    is_private_directory: bool  # whether this agent alone uses the directory, and removes it at the end
    forwards_signals: bool  # whether a signal to the agent is to be passed on to the ranks
    secret: bytes
    stdin: str = ""  # what one rank reads on its standard input; "": nothing
    stdin_rank: int = -1  # and which
    cpus_per_rank: int = 0  # hardware threads; 0: the share of the node's
    rank_argument: str = ""  # each rank gets this and its local rank as its first argument; "": none
    mpi: str = ""  # what starts the ranks of an MPI program: "mpirun", "horovodrun", Slurm's "pmix" …; "": we do
    looks: Optional[Dict[str, Any]] = None  # what is looked at beside the ranks, as a survey is asked; None: nothing
    store_address: str = ""  # where the first agent serves what ranks meet by; "": on all interfaces
    serves_horovod: bool = False  # whether it serves the store by which Horovod's ranks meet, too


def read(run_directory: str) -> Order:
    """Read the order and the secret of a run."""
    return Order(**read_fields(run_directory), secret=private.read_secret(run_directory))


def read_fields(run_directory: str) -> Dict[str, Any]:
    """Read the order alone: the secret is gone once all agents have come."""
    with open(os.path.join(run_directory, "order.json"), encoding="utf-8") as file:
        fields: Dict[str, Any] = json.load(file)
    fields["addresses"] = [(host, port) for host, port in fields["addresses"]]
    return fields


def write(order: Order, run_directory: str) -> None:
    """Write the order and the secret, readable by the user alone."""
    fields = order._asdict()
    secret: bytes = fields.pop("secret")
    private.write(os.path.join(run_directory, "order.json"), json.dumps(fields, indent=1).encode())
    private.write_secret(run_directory, secret)
