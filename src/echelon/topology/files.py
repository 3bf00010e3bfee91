"""Read small files of sysfs and procfs, also those of PCI devices; a missing or malformed file reads as empty."""

import os
from typing import List, NamedTuple, Optional, Tuple

from .cpu_lists import parse_cpu_list


def text(path: str) -> str:
    """Return a file's text, stripped; empty if it cannot be read."""
    return text_or_none(path) or ""


def text_or_none(path: str) -> Optional[str]:
    """Return a file's text, empty if reading is forbidden, None if there is no such file."""
    # os.open and os.read: a node with 256 threads has hundreds of these files, and open() takes three times as long.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        return ""
    try:
        parts = []
        while part := os.read(descriptor, 65536):
            parts.append(part)
        return b"".join(parts).decode("utf-8", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def number(value: str, missing: int = -1) -> int:
    """Return a decimal number, or `missing` for anything else."""
    digits = value[1:] if value.startswith("-") else value
    return int(value) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else missing


def names(folder: str) -> List[str]:
    """Return the sorted names in a folder; empty if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []


def numbers(folder: str, prefix: str = "") -> List[int]:
    """Return N for every PREFIXN in a folder, in order: cpu0, cpu1, …"""
    rests = [name[len(prefix) :] for name in names(folder) if name.startswith(prefix)]
    return sorted(int(rest) for rest in rests if rest.isascii() and rest.isdigit() and len(rest) < 10)


_DEVICES = "sys/bus/pci/devices"


class DeviceLocation(NamedTuple):
    """The location of a PCI device, as far as the kernel shows it."""

    numa: int  # -1: not known
    local_cpus: Tuple[int, ...]
    path: str


UNKNOWN = DeviceLocation(-1, (), "")


def place(root: str, address: str) -> DeviceLocation:
    """Return the location of the device with this address."""
    if not address:
        return UNKNOWN
    folder = os.path.join(root, _DEVICES, address)
    return DeviceLocation(
        numa=max(-1, number(text(os.path.join(folder, "numa_node")))),
        local_cpus=parse_cpu_list(text(os.path.join(folder, "local_cpulist"))),
        path=_path(folder),
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
        if is_address(name):
            return name
    return ""


def is_address(name: str) -> bool:
    """Say whether a name is a PCI address: 0000:c1:00.0."""
    return name.count(":") == 2 and name[-2:-1] == "." and name.replace(":", "").replace(".", "").isalnum()


def normal(address: str) -> str:
    """Return an address with a domain of four digits, in lower case: NVML writes 00000000:C1:00.0."""
    domain, _, rest = address.strip().lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}" if rest else ""
    except ValueError:
        return ""


def num_shared(path: str, other: str) -> int:
    """Return the number of steps that two paths from the root share; 0: not even the root complex."""
    left, right = path.split("/"), other.split("/")
    steps = 0
    while steps < min(len(left), len(right)) and left[steps] and left[steps] == right[steps]:
        steps += 1
    return steps
