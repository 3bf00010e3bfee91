"""The nouns of a node's topology: hardware threads, NICs, and distances; a device is a noun of `hardware`.

This room is shipped to the compute nodes: standard library only, Python 3.9 or newer.
"""

from typing import Dict, NamedTuple, Tuple

from ..hardware.answers import Device, Link


class Cpu(NamedTuple):
    """A hardware thread, by Linux's number."""

    number: int
    core: int  # the least number among the hardware threads of its physical core: equal for SMT siblings
    socket: int
    numa: int  # -1: not known
    cache: int  # the least number among the threads that share its last-level cache


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
    device_links: Tuple[Link, ...]
