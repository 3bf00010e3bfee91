"""What will be asked of Slurm, and what every rank will find."""

from dataclasses import dataclass

from echelon.spec.reason import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An environment variable that the machine needs."""

    name: str
    value: str
    """May hold {user}, {job_id}, {node_rank}, {scratch}: each node fills them in."""
    why: str
    is_folder: bool = False
    """Whether the value names a folder that each node makes before the ranks start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """A request resolved on a machine: nodes, cores, memory, time, each with its reason."""

    machine: str
    title: str
    partition: str
    num_nodes: int
    ranks_per_node: int
    """One per device that is used."""
    devices_per_node: int
    """What is booked of each node: in a partition of whole nodes, all that it has."""
    whole_nodes: bool
    exclusive: bool
    """Whether whole nodes must be asked for, the partition not giving them by itself."""
    cores_per_rank: int
    """0: not published, so Slurm's default."""
    threads_per_core: int
    """Hardware threads that Slurm counts for each core."""
    memory_bytes_per_node: int
    """0: not asked for, because Slurm gives it by device or nobody has published what a node has."""
    minutes: int
    account: str
    qos: str
    reservation: str
    gres: str
    """What Slurm calls the device."""
    device_option: str
    """"--gpus-per-node" or "--gres"."""
    core_map: tuple[tuple[int, ...], ...]
    """Cores of each local rank, where the whole node is ours and its map is published; else empty."""
    variables: tuple[Variable, ...]
    batch_per_rank: int
    """Samples of one rank in one optimizer step; 0: no global batch was named."""
    billed: float | None
    """What it costs if it runs to its time limit; None where the rule is not published."""
    billed_unit: str
    billed_because: str
    """The multiplication that gives it."""
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...] = ()
    """What the user should know beside it: "72 GPUs cost less"."""

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.ranks_per_node
