"""What a job asks of a machine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Resources as they were asked for; 0 and empty mean: not said."""

    num_devices: int = 0
    num_nodes: int = 0
    """With num_devices: the nodes that share them; alone: whole nodes."""
    devices_per_node: int = 0
    """Alone: those of one node."""
    whole_nodes: bool = False
    """Whether the nodes are wanted for this job alone."""
    partition: str = ""
    chip: str = ""
    minutes: int = 0
    cores_per_device: int = 0
    cpus_per_rank: int = 0
    """As Slurm counts them for a task: hardware threads, where it hands those out."""
    memory_bytes_per_device: int = 0
    memory_bytes_per_node: int = 0
    account: str = ""
    qos: str = ""
    reservation: str = ""
    global_batch: int = 0
    """Samples of one optimizer step over all ranks."""
