"""A booking: the request to Slurm, and the environment of every rank, each with its reason."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A decision: its name, the chosen value, and the reason."""

    what: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An environment variable that the machine needs."""

    name: str
    value: str
    """May contain {user}, {job_id}, {node_rank}, {scratch}: each node fills these in."""
    why: str
    is_folder: bool = False
    """Whether the value names a folder that each node creates before the ranks start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """A request resolved on a machine: nodes, cores, memory, time, each with its reason."""

    machine: str
    title: str
    partition: str
    """The name of the machine's row."""
    num_nodes: int
    ranks_per_node: int
    """One rank for each device in use."""
    devices_per_node: int
    """Devices booked on each node; in a partition of whole nodes, all of its devices."""
    whole_nodes: bool
    exclusive: bool
    """Whether whole nodes must be requested, because the partition does not give them by itself."""
    cores_per_rank: int
    """0: not published, so Slurm's default."""
    threads_per_core: int
    """Hardware threads that Slurm counts for each core."""
    memory_bytes_per_node: int
    """0: not requested, because Slurm gives memory by device, or the node's memory is not published."""
    minutes: int
    account: str
    qos: str
    reservation: str
    gres: str
    """Slurm's name of the device."""
    device_option: str
    """"--gpus-per-node" or "--gres"."""
    core_map: tuple[tuple[int, ...], ...]
    """Cores of each local rank, if the whole node is booked and its map is published; else empty."""
    variables: tuple[Variable, ...]
    batch_per_rank: int
    """Samples of one rank in one optimizer step; 0: no global batch was given."""
    billed: float | None
    """The cost if the job runs to its time limit; None if the rule is not published."""
    billed_unit: str
    billed_because: str
    """The multiplication behind the cost."""
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...] = ()
    """Further remarks for the user: "72 GPUs cost less"."""
    warnings: tuple[str, ...] = ()
    partition_option: str = ""
    """The value of `--partition`; empty where a QOS takes its place."""
    constraint: str = ""

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.ranks_per_node
