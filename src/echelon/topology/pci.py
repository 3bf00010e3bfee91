"""Find where a PCI device is: its NUMA domain, the hardware threads beside it, and the path to it."""

import os
from typing import Iterable, NamedTuple, Tuple

from ..hardware import files
from ..hardware.answers import Device
from .cpus import parse_cpu_list

_DEVICES = "sys/bus/pci/devices"


class Place(NamedTuple):
    """The location of a PCI device, as far as the kernel shows it."""

    numa: int  # -1: not known
    local_cpus: Tuple[int, ...]
    path: str


UNKNOWN = Place(-1, (), "")


def of(root: str, address: str) -> Place:
    if not address:
        return UNKNOWN
    folder = os.path.join(root, _DEVICES, address)
    return Place(
        numa=max(-1, files.number(files.text(os.path.join(folder, "numa_node")))),
        local_cpus=parse_cpu_list(files.text(os.path.join(folder, "local_cpulist"))),
        path=_path(folder),
    )


def placed(root: str, devices: Iterable[Device]) -> Tuple[Device, ...]:
    """Return devices with their location; devices of one chip may share an address."""
    located = [(device, of(root, device.pci)) for device in devices]
    return tuple(
        device._replace(numa=place.numa, local_cpus=place.local_cpus, pci_path=place.path) for device, place in located
    )


def _path(folder: str) -> str:
    # ../../../devices/pci0000:c0/0000:c0:07.1/0000:c1:00.0
    try:
        target = os.readlink(folder)
    except (OSError, ValueError):
        return ""
    steps = target.split("/")
    # On some processors the root complex itself is below a platform device: devices/platform/40000000.pcie/pci0000:00/…
    start = next((index for index, step in enumerate(steps) if step.startswith("pci") and ":" in step), len(steps))
    return "/".join(steps[start:])


def address_of(link: str) -> str:
    """Return the PCI address behind a `device` link of sysfs; a virtio device has that of its PCI parent."""
    for name in reversed(os.path.realpath(link).split("/")):
        if files.is_address(name):
            return name
    return ""


def num_shared(path: str, other: str) -> int:
    """Return the number of steps that two paths from the root share; 0: not even the root complex."""
    left, right = path.split("/"), other.split("/")
    steps = 0
    while steps < min(len(left), len(right)) and left[steps] and left[steps] == right[steps]:
        steps += 1
    return steps
