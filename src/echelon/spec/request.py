"""A job's request to a machine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Requested resources; 0 and empty mean not stated."""

    num_devices: int = 0
    num_nodes: int = 0
    """With num_devices: the nodes that share the devices; alone: whole nodes."""
    devices_per_node: int = 0
    """Without num_devices: the devices of one node."""
    whole_nodes: bool = False
    """Whether the job wants the nodes for itself."""
    partition: str = ""
    chip: str = ""
    minutes: int = 0
    cores_per_device: int = 0
    cpus_per_rank: int = 0
    """As Slurm counts them for a task: hardware threads, if it hands those out."""
    memory_bytes_per_device: int = 0
    memory_bytes_per_node: int = 0
    account: str = ""
    qos: str = ""
    reservation: str = ""
    global_batch: int = 0
    """Samples of one optimizer step over all ranks."""
