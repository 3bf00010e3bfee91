"""Read the topology of this node from a file tree, which may be a copy of another node's."""

import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..hardware import files, vendors
from ..hardware.answers import Device, Listing
from . import binding, cpus, nics, pci
from .cpus import cpu_list
from .node import Cpu, Nic, Node


def read(root: str = "/", environ: Optional[Mapping[str, str]] = None) -> Node:
    """Return the node; parts that cannot be read stay unknown, and nothing raises.

    The environment only decides whose devices count on a node with two vendors: a processor's own graphics beside
    a card. It filters nothing: `visible.visible` does.
    """
    domains = cpus.read_domains(root)
    allowed = cpus.read_allowed(root)
    # A container that hides sysfs shows only the allowed threads.
    threads = cpus.read_cpus(root, domains.of_cpu) or tuple(Cpu(number, number, -1, -1, -1) for number in allowed)
    online = {cpu.number for cpu in threads}
    devices, links = _listed(root, environ or {})
    return Node(
        name=files.text(os.path.join(root, "proc/sys/kernel/hostname")),
        cpus=threads,
        allowed=tuple(number for number in allowed if number in online),
        numa_distances=domains.distances,
        numa_memory_bytes=domains.memory_bytes,
        devices=devices,
        nics=nics.read(root),
        device_links=links,
    )


def _listed(root: str, environ: Mapping[str, str]) -> Listing:
    """Return the devices of one vendor, each with its place, and their links."""
    listings = {vendor: vendor.read(root) for vendor in vendors.LISTED}
    devices, links = listings[vendors.meant(environ, [vendor for vendor in listings if listings[vendor][0]])]
    return pci.placed(root, devices), links


FORMAT = 1


def dump(root: str, environ: Mapping[str, str]) -> str:
    """Return the node in this file tree as JSON text."""
    import json

    return json.dumps(as_dict(read(root, environ)), indent=1)


def near_cores(node: Node) -> Dict[int, Tuple[int, ...]]:
    """Return, by device, the hardware threads of its rank when each allowed device has one rank."""
    ours = [device for device in node.devices if device.is_allowed]
    assigned = binding.assign(node, ours)
    return {device.number: assigned[index] for index, device in enumerate(ours)}


def as_dict(node: Node) -> Dict[str, Any]:
    """Return the node as JSON types; -1, 0 and empty texts mean unknown."""
    near = near_cores(node)
    return {
        "format": FORMAT,
        "node": node.name,
        "cpus": _cpus(node),
        "allowed": cpu_list(node.allowed),
        "numa": [_domain(node, number) for number in domains(node)],
        "devices": [_device(node, device, near.get(device.number, ())) for device in node.devices],
        "nics": [_nic(nic) for nic in node.nics],
        "links": [
            {"devices": [one, other], "kind": kind, "num_links": count} for one, other, kind, count in node.device_links
        ],
    }


def domains(node: Node) -> List[int]:
    """Return the NUMA domains, those without hardware threads included."""
    known = {*node.numa_distances, *node.numa_memory_bytes, *(cpu.numa for cpu in node.cpus)}
    return sorted(number for number in known if number >= 0)


def num_cores(node: Node) -> int:
    return len({cpu.core for cpu in node.cpus})


def _cpus(node: Node) -> Dict[str, Any]:
    cores: Dict[int, List[int]] = {}
    caches: Dict[int, List[int]] = {}
    sockets: Dict[int, List[int]] = {}
    for cpu in node.cpus:
        cores.setdefault(cpu.core, []).append(cpu.number)
        caches.setdefault(cpu.cache, []).append(cpu.number)
        sockets.setdefault(cpu.socket, []).append(cpu.number)
    return {
        "num_threads": len(node.cpus),
        "num_cores": len(cores),
        "cores": [cpu_list(cpus) for _, cpus in sorted(cores.items())],
        "caches": [cpu_list(cpus) for cache, cpus in sorted(caches.items()) if cache >= 0],
        "sockets": {str(socket): cpu_list(cpus) for socket, cpus in sorted(sockets.items()) if socket >= 0},
    }


def _domain(node: Node, number: int) -> Dict[str, Any]:
    return {
        "number": number,
        "cpus": cpu_list(cpu.number for cpu in node.cpus if cpu.numa == number),
        "memory_bytes": node.numa_memory_bytes.get(number, 0),
        "distances": {str(other): value for other, value in sorted(node.numa_distances.get(number, {}).items())},
    }


def _device(node: Node, device: Device, cores: Tuple[int, ...]) -> Dict[str, Any]:
    nic = binding.nearest_nic(node, device)
    return {
        "number": device.number,
        "vendor": device.vendor,
        "model": device.model,
        "pci": device.pci,
        "uuid": device.uuid,
        "numa": device.numa,
        "cores": list(cores),
        "memory_bytes": device.memory_bytes,
        "chip": device.chip,
        "is_allowed": device.is_allowed,
        "nic": nic.name if nic else "",
    }


def _nic(nic: Nic) -> Dict[str, Any]:
    return {
        "name": nic.name,
        "kind": nic.kind,
        "interface": nic.interface,
        "pci": nic.pci,
        "numa": nic.numa,
        "is_up": nic.is_up,
        "bits_per_second": nic.bits_per_second,
    }
