"""The nouns of a node's topology: hardware threads, devices, NICs, and distances.

This room is shipped to the compute nodes: standard library only, Python 3.9 or newer.
"""

from typing import Dict, NamedTuple, Tuple


class Cpu(NamedTuple):
    """A hardware thread, by Linux's number."""

    number: int
    core: int  # the least number among the hardware threads of its physical core: equal for SMT siblings
    socket: int
    numa: int  # -1: not known
    cache: int  # the least number among the threads that share its last-level cache


class Device(NamedTuple):
    """A device as the framework counts it, before any visibility filter."""

    number: int  # in the driver's order: HIP's, and CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID
    vendor: str  # "amd" or "nvidia"
    model: str  # "gfx90a", "NVIDIA A100-SXM4-80GB"; empty: not known
    pci: str  # "0000:c1:00.0"; empty: not known
    uuid: str  # "GPU-…"; empty: not known
    numa: int  # -1: not known
    local_cpus: Tuple[int, ...]  # hardware threads that the kernel calls local to it; empty: not known
    memory_bytes: int  # 0: not known
    chip: int  # devices with equal numbers share a chip
    is_allowed: bool  # whether this process may open it
    pci_path: str = ""  # the path from the PCI root: "pci0000:c0/0000:c0:07.1/0000:c1:00.0"; empty: not known


class Nic(NamedTuple):
    """A network interface."""

    name: str  # "hsn0", "mlx5_0", "eth0"
    kind: str  # "slingshot", "infiniband", "ethernet"
    pci: str
    numa: int  # -1: not known
    is_up: bool
    bits_per_second: int  # 0: not known
    pci_path: str = ""  # as in Device
    interface: str = ""  # its IP interface, if there is one: "hsn0", "ib0"


class Node(NamedTuple):
    """The topology of a node."""

    name: str
    cpus: Tuple[Cpu, ...]
    allowed: Tuple[int, ...]  # hardware threads that the affinity mask and the cgroup allow
    numa_distances: Dict[int, Dict[int, int]]  # between domains; 10 is local
    numa_memory_bytes: Dict[int, int]
    devices: Tuple[Device, ...]
    nics: Tuple[Nic, ...]
    device_links: Tuple[Tuple[int, int, str, int], ...]
    """Direct links: lesser device number, greater device number, "xgmi" or "nvlink", number of links (0: not known)."""
