"""Read AMD's devices from KFD's part of sysfs, which needs neither root nor ROCm."""

from __future__ import annotations

import os
from typing import NamedTuple

from .. import files
from ..answers import Device, Link, Listing

_NODES = "sys/class/kfd/kfd/topology/nodes"
_DRIVER = "sys/bus/pci/drivers/amdgpu"
_XGMI = 11  # io_links/*/properties, "type": CRAT_IOLINK_TYPE_XGMI
_ONE_HOP = 15  # every hop has the "weight" 15
_FRAME_BUFFERS = (1, 2)  # mem_banks/*/properties, "heap_type": visible and invisible device memory
# Four links join the dies of an MI250X (400 GB/s for both directions together); one or two join chips.
_LINKS_WITHIN_CHIP = 4
_DUAL_DIE = "gfx90a"


class KfdNode(NamedTuple):
    """A device among KFD's nodes; without properties if the device cgroup hides it."""

    number: int
    properties: dict[str, int]

    @property
    def is_allowed(self) -> bool:
        return bool(self.properties)


def nodes(root: str) -> list[KfdNode]:
    """Return the devices in HIP's order, hidden ones included."""
    folder = os.path.join(root, _NODES)
    return [node for number in files.numbers(folder) if (node := _node(folder, number)) is not None]


def addresses_by_id(root: str) -> dict[str, str]:
    """Return the PCI address of each allowed device by the number that KFD's list of processes has for it."""
    place = os.path.join(root, _NODES)
    return {
        files.text(os.path.join(place, str(node.number), "gpu_id")): address
        for node in nodes(root)
        if (address := _address(root, node.properties))
    }


def read(root: str) -> Listing:
    """Return the devices in HIP's order, hidden ones included, and the xGMI links between them."""
    folder, found = os.path.join(root, _NODES), nodes(root)
    addresses = _addresses(root, found)
    links = _links(folder, {node.number: index for index, node in enumerate(found)}, found)
    devices = [_device(folder, node, index, addresses[index]) for index, node in enumerate(found)]
    chips = _chips(devices, links)
    return tuple(device._replace(chip=chips[device.number]) for device in devices), links


def _node(folder: str, number: int) -> KfdNode | None:
    """Return a KFD node if it is a device, else None."""
    place = os.path.join(folder, str(number))
    gpu_id = files.text_or_none(os.path.join(place, "gpu_id"))
    properties = _properties(place)
    if properties:
        return KfdNode(number, properties) if properties.get("simd_count", 0) > 0 and gpu_id != "0" else None
    # Files of a hidden device are empty or unreadable (EPERM); a processor's gpu_id is 0 and always readable.
    return None if gpu_id in (None, "0") else KfdNode(number, {})


def _properties(place: str) -> dict[str, int]:
    # simd_count 440
    words = (line.split() for line in files.text(os.path.join(place, "properties")).splitlines())
    return {pair[0]: files.number(pair[1], 0) for pair in words if len(pair) == 2}


def _device(folder: str, node: KfdNode, index: int, address: str) -> Device:
    unique = node.properties.get("unique_id", 0)
    return Device(
        number=index,
        vendor="amd",
        model=_model(node.properties.get("gfx_target_version", 0)),
        pci=address,
        uuid=f"GPU-{unique:016x}" if unique > 0 else "",  # the form that ROCR_VISIBLE_DEVICES takes
        numa=-1,
        local_cpus=(),
        memory_bytes=_memory_bytes(os.path.join(folder, str(node.number), "mem_banks")),
        chip=index,
        is_allowed=node.is_allowed,
    )


def _model(version: int) -> str:
    # 90010 is gfx90a: major, minor and stepping, the last two as hexadecimal digits
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}" if version > 0 else ""


def _memory_bytes(folder: str) -> int:
    banks = [_properties(os.path.join(folder, str(number))) for number in files.numbers(folder)]
    return sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _FRAME_BUFFERS)


def _addresses(root: str, nodes: list[KfdNode]) -> list[str]:
    """Return the PCI address of each device; for hidden devices, use the driver's order."""
    known = [_address(root, node.properties) for node in nodes]
    if all(known):
        return known
    bound = sorted(name for name in files.names(os.path.join(root, _DRIVER)) if files.is_address(name))
    fits = len(bound) == len(known) and all(ours in ("", bound[index]) for index, ours in enumerate(known))
    return bound if fits else known


def _address(root: str, properties: dict[str, int]) -> str:
    location = properties.get("location_id", 0)
    if location <= 0:
        return ""
    slot = f"{properties.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"
    address = f"{slot}.{location & 7}"
    # A partition of an MI300 has its number in place of the function.
    return address if os.path.exists(os.path.join(root, "sys/bus/pci/devices", address)) else f"{slot}.0"


def _links(folder: str, index_of: dict[int, int], nodes: list[KfdNode]) -> tuple[Link, ...]:
    """Return the direct xGMI links; KFD lists links over other devices too, with a greater weight."""
    links: dict[tuple[int, int], int] = {}
    for node in nodes:
        place = os.path.join(folder, str(node.number), "io_links")
        for number in files.numbers(place):
            link = _properties(os.path.join(place, str(number)))
            first, second = index_of.get(link.get("node_from", -1)), index_of.get(link.get("node_to", -1))
            if first is None or second is None or first == second:
                continue
            if link.get("type") == _XGMI and 0 < link.get("weight", 0) <= _ONE_HOP:
                pair = (min(first, second), max(first, second))
                links[pair] = max(links.get(pair, 0), _num_links(link))
    return tuple((one, other, "xgmi", count) for (one, other), count in sorted(links.items()))


def _num_links(link: dict[str, int]) -> int:
    # The least bandwidth is that of one link, the greatest that of all links; older kernels give 0 for both.
    least, greatest = link.get("min_bandwidth", 0), link.get("max_bandwidth", 0)
    return greatest // least if least > 0 else 0


def _chips(devices: list[Device], links: tuple[Link, ...]) -> list[int]:
    """Return each device's chip: the least number among the devices of the chip."""
    chips = list(range(len(devices)))
    first_with: dict[tuple[str, str], int] = {}
    for device in devices:  # partitions of one chip share its address or its unique number
        for key in (("pci", device.pci), ("uuid", device.uuid)):
            if key[1]:
                chips[device.number] = min(chips[device.number], first_with.setdefault(key, device.number))
    for first, second, _, count in links:
        if count >= _LINKS_WITHIN_CHIP and devices[first].model == devices[second].model == _DUAL_DIE:
            chips[second] = min(chips[first], chips[second])
    return chips
