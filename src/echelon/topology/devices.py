"""Which devices a process sees, and how far they are from cores and NICs."""

from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..environment import digits
from ..hardware import vendors
from ..hardware.answers import Device
from . import pci
from .node import Nic, Node

LOCAL, REMOTE = 10, 20  # the kernel's own LOCAL_DISTANCE and REMOTE_DISTANCE
_FAST = ("slingshot", "infiniband")


def between(node: Node, first: int, second: int) -> int:
    """Return the distance of two NUMA domains; the kernel's defaults without a table, 0 if a domain is unknown."""
    if first < 0 or second < 0:
        return 0
    listed = node.numa_distances.get(first, {}).get(second, 0) or node.numa_distances.get(second, {}).get(first, 0)
    return listed or (LOCAL if first == second else REMOTE)


def distance(node: Node, cpus: Iterable[int], device: Optional[Device]) -> int:
    """Return the distance of the farthest of these hardware threads from a device; 10 is local, 0 unknown."""
    threads = tuple(cpus)
    if device is None or not threads:
        return 0
    if device.numa < 0:
        if not device.local_cpus:
            return 0
        return LOCAL if set(threads) <= set(device.local_cpus) else REMOTE
    domain_of: Dict[int, int] = {cpu.number: cpu.numa for cpu in node.cpus}
    distances = {between(node, domain, device.numa) for domain in {domain_of.get(thread, -1) for thread in threads}}
    return 0 if 0 in distances else max(distances)


def nearest_nic(node: Node, device: Device) -> Optional[Nic]:
    """Return the NIC for this device's traffic: behind the same PCI switch or root, then by NUMA.

    Interfaces that are up and of a fast network come first. Devices that are equally near to several NICs share them.
    """
    ranked = _ranked(node, device)
    nearest = [nic for nic, key in ranked if key == ranked[0][1]]
    if not nearest:
        return None
    rivals = [other for other in node.devices if [nic for nic, key in _best(_ranked(node, other))] == nearest]
    turn = [other.number for other in rivals].index(device.number) if device in rivals else 0
    return nearest[turn % len(nearest)]


_Ranked = List[Tuple[Nic, Tuple[int, int]]]


def _best(ranked: _Ranked) -> _Ranked:
    return [entry for entry in ranked if entry[1] == ranked[0][1]]


def _ranked(node: Node, device: Device) -> _Ranked:
    """Return the usable NICs with their distances, nearest first; empty if all are unknown."""
    up = [nic for nic in node.nics if nic.is_up] or list(node.nics)
    worth = [nic for nic in up if nic.kind in _FAST] or up
    # The greatest distance of SLIT is 255; unknown distances come after it.
    keys = {
        nic: (-pci.num_shared(nic.pci_path, device.pci_path), between(node, nic.numa, device.numa) or 256)
        for nic in worth
    }
    if len(worth) > 1 and all(key == (0, 256) for key in keys.values()):
        return []
    return sorted(keys.items(), key=lambda entry: entry[1])


def visible(node: Node, environ: Mapping[str, str]) -> List[Device]:
    """Return the devices in the order in which a framework with this environment counts them.

    Indices count the devices that the cgroup allows. NVIDIA's indices are those of CUDA_DEVICE_ORDER=PCI_BUS_ID, which
    is also CUDA's default order if all cards are of one model.
    """
    seen = [device for device in node.devices if device.is_allowed]
    for text in vendors.of(seen).filter_texts(environ):
        seen = _filtered(text, seen)
    return seen


def _filtered(text: Optional[str], seen: Sequence[Device]) -> List[Device]:
    if text is None:
        return list(seen)
    chosen: List[Device] = []
    for word in text.split(","):
        device = _named(word.strip(), seen)
        if device is None:
            break  # the drivers stop at the first missing device, at -1 and at an empty text
        chosen.append(device)
    return chosen if len({device.number for device in chosen}) == len(chosen) else []  # CUDA shows none for duplicates


def _named(word: str, seen: Sequence[Device]) -> Optional[Device]:
    if word.startswith(("GPU-", "MIG-")):
        # CUDA accepts a unique prefix of an identifier.
        matches = [device for device in seen if device.uuid.lower().startswith(word.lower())]
        return matches[0] if len(matches) == 1 else None
    if digits.whole(word, len(seen)) < len(seen):
        return seen[int(word)]
    return None
