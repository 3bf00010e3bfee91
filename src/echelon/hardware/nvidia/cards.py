"""Read NVIDIA's devices from the driver's own files; memory, NVLinks and MIG come from NVML, if it is there."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from .. import files
from ..answers import Device, Link, Listing
from .package import Card, Instance
from .package import read as read_package

_CARDS = "proc/driver/nvidia/gpus"
_CAPABILITIES = "proc/driver/nvidia/capabilities"


class _Card(NamedTuple):
    """A card; CUDA counts its MIG devices instead, if it has any."""

    address: str
    model: str
    uuid: str
    minor: int  # the minor number of its device file; -1: not known
    nvml: Card | None


def read(root: str, library: Any | None = None) -> Listing:
    """Return the devices in the order of their PCI addresses, and the NVLinks between them."""
    shown = read_package(library) if library is not None else {}
    cards = [_card(root, address, shown.get(address)) for address in _addresses(root, shown)]
    device_files = files.numbers(os.path.join(root, "dev"), "nvidia")
    if not cards:  # in a container that lacks the driver's files in /proc
        cards = [_Card("", "", "", minor, None) for minor in device_files]
    devices: list[Device] = []
    first: dict[str, int] = {}
    for card in cards:
        first[card.address] = len(devices)
        devices += _devices(root, card, len(devices), bool(device_files))
    return tuple(devices), _links(cards, first)


def names(root: str) -> list[str]:
    """Return the names of the cards' folders: their PCI addresses as the driver writes them."""
    return files.names(os.path.join(root, _CARDS))


def _addresses(root: str, shown: dict[str, Card]) -> list[str]:
    named = {files.normal(name) for name in names(root) if files.is_address(name)}
    return sorted((named | set(shown)) - {""})


def _card(root: str, address: str, seen: Card | None) -> _Card:
    folder = os.path.join(root, _CARDS)
    name = next((name for name in names(root) if files.normal(name) == address), address)
    fields = files.fields(os.path.join(folder, name, "information"))
    uuid = fields.get("GPU UUID", "")
    return _Card(
        address=address,
        model=(seen.model if seen else "") or fields.get("Model", ""),
        # before a card's first use the driver writes GPU-????????-????-…
        uuid=(seen.uuid if seen else "") or (uuid if "?" not in uuid else ""),
        minor=files.number(fields.get("Device Minor", "")),
        nvml=seen,
    )


def _devices(root: str, card: _Card, first: int, has_files: bool) -> list[Device]:
    whole = Device(
        number=first,
        vendor="nvidia",
        model=card.model,
        pci=card.address,
        uuid=card.uuid,
        numa=-1,
        local_cpus=(),
        memory_bytes=card.nvml.memory_bytes if card.nvml else 0,
        chip=first,
        # Before the first use after boot, device files may be missing.
        is_allowed=not has_files or card.minor < 0 or _may_open(root, f"nvidia{card.minor}"),
    )
    instances = card.nvml.instances if card.nvml else ()
    return [
        whole._replace(
            number=first + index,
            model=f"{card.model} MIG {instance.profile}".removesuffix(" MIG "),
            uuid=instance.uuid,
            memory_bytes=instance.memory_bytes,
            is_allowed=whole.is_allowed and _may_use(root, card.minor, instance),
        )
        for index, instance in enumerate(instances)
    ] or [whole]


def _may_open(root: str, name: str) -> bool:
    """Say whether this process may open a device file, without opening it.

    access(2) asks the device cgroup as open(2) does (both go through the kernel's inode_permission), but does not
    initialise the card, which takes a second for each card without a persistence daemon.
    """
    return os.access(os.path.join(root, "dev", name), os.R_OK | os.W_OK)


def _may_use(root: str, minor: int, instance: Instance) -> bool:
    """Say whether this process may open the capability files of a MIG device."""
    card = os.path.join(root, _CAPABILITIES, f"gpu{minor}/mig/gi{instance.gpu_instance}")
    for path in (card, os.path.join(card, f"ci{instance.compute_instance}")):
        minor_of_file = files.fields(os.path.join(path, "access")).get("DeviceFileMinor")
        name = f"dev/nvidia-caps/nvidia-cap{minor_of_file}"
        if minor_of_file is not None and not os.access(os.path.join(root, name), os.R_OK):
            return False
    return True


def _links(cards: list[_Card], first: dict[str, int]) -> tuple[Link, ...]:
    """Return the NVLinks between whole cards; behind a switch, each card reaches every other with all of its links."""
    links: list[Link] = []
    whole = [card for card in cards if card.nvml and not card.nvml.instances]
    for index, this_card in enumerate(whole):
        for other_card in whole[index + 1 :]:
            ours, theirs = (card.nvml.num_links_to if card.nvml else {} for card in (this_card, other_card))
            direct = max(ours.get(other_card.address, 0), theirs.get(this_card.address, 0))
            count = direct or min(ours.get("switch", 0), theirs.get("switch", 0))
            if count:
                links.append((first[this_card.address], first[other_card.address], "nvlink", count))
    return tuple(links)
