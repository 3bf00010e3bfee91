"""The nouns of what a vendor answers about the devices of a node.

This room is shipped to the compute nodes: standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from .reading import Reading


class Device(NamedTuple):
    """A device as the framework counts it, before any visibility filter."""

    number: int  # in the driver's order: HIP's, and CUDA's with CUDA_DEVICE_ORDER=PCI_BUS_ID
    vendor: str  # the name of its Vendor
    model: str  # "gfx90a", "NVIDIA A100-SXM4-80GB"; empty: not known
    pci: str  # "0000:c1:00.0"; empty: not known
    uuid: str  # "GPU-…"; empty: not known
    numa: int  # -1: not known
    local_cpus: tuple[int, ...]  # hardware threads that the kernel calls local to it; empty: not known
    memory_bytes: int  # 0: not known
    chip: int  # devices with equal numbers share a chip
    is_allowed: bool  # whether this process may open it
    pci_path: str = ""  # the path from the PCI root: "pci0000:c0/0000:c0:07.1/0000:c1:00.0"; empty: not known


Link = tuple[int, int, str, int]
"""A direct link: lesser device number, greater device number, kind of Interconnect, number of links (0: not known)."""
Listing = tuple[tuple[Device, ...], tuple[Link, ...]]


class Health(NamedTuple):
    """The health of a device."""

    pci: str
    used_bytes: int  # memory in use before the run
    corrected: int  # memory errors since boot; -1: unknown
    uncorrected: int
    pending: str  # a repair that needs a reset
    throttled: tuple[str, ...]  # reasons for throttling
    pcie_width: int
    pcie_width_most: int
    processes: tuple[str, ...]  # "4711 python3 (other)"


class Healths(NamedTuple):
    """The health of all devices, and its source."""

    devices: tuple[Health, ...] = ()
    source: str = ""


class Sampled(Protocol):
    """What a sampler needs to know of a device."""

    @property
    def number(self) -> int: ...
    @property
    def vendor(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def pci(self) -> str: ...
    @property
    def uuid(self) -> str: ...
    @property
    def memory_bytes(self) -> int: ...


Readings = Callable[[], dict[int, "Reading"]]
"""Return the state by device number; a device without a new state is left out."""
