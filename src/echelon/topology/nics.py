"""Read the network interfaces that have their own device: Slingshot, InfiniBand, Ethernet."""

import os
from typing import Dict, List, Tuple

from ..hardware import files
from . import pci
from .node import Nic

_NET, _VERBS, _CXI = "sys/class/net", "sys/class/infiniband", "sys/class/cxi"


def read(root: str) -> Tuple[Nic, ...]:
    """Return the interfaces; the fastest kind comes first."""
    interfaces = _interfaces(root)
    slingshot = _slingshot(root, interfaces)
    infiniband = _infiniband(root, interfaces)
    taken = {nic.interface for nic in (*slingshot, *infiniband)}
    taken_slots = {nic.pci for nic in infiniband if nic.pci}
    ethernet = [
        _net_nic(root, name, "ethernet", address)
        for name, address in interfaces.items()
        if name not in taken and address not in taken_slots
    ]
    return (*slingshot, *infiniband, *ethernet)


def _interfaces(root: str) -> Dict[str, str]:
    """Return the PCI address of each interface that has a device (empty: unknown); a bridge or a bond has none."""
    folder = os.path.join(root, _NET)
    links = {name: os.path.join(folder, name, "device") for name in files.names(folder)}
    return {name: pci.address_of(link) for name, link in sorted(links.items(), key=_by_number) if os.path.exists(link)}


def _by_number(item: Tuple[str, str]) -> Tuple[str, int, str]:
    name = item[0]
    stem = name.rstrip("0123456789")
    return stem, files.number(name[len(stem) :], 0), name


def _slingshot(root: str, interfaces: Dict[str, str]) -> List[Nic]:
    folder = os.path.join(root, _CXI)
    cards = {name: pci.address_of(os.path.join(folder, name, "device")) for name in files.names(folder)}
    addresses = {address for address in cards.values() if address}
    named = [name for name, address in interfaces.items() if name.startswith("hsn") or address in addresses]
    nics = [_net_nic(root, name, "slingshot", interfaces[name]) for name in named]
    covered = {nic.pci for nic in nics}
    for name, address in sorted(cards.items(), key=_by_number):  # a card without an IP interface
        if address not in covered:
            place = pci.of(root, address)
            nics.append(Nic(name, "slingshot", address, place.numa, True, 0, place.path))
    return nics


def _infiniband(root: str, interfaces: Dict[str, str]) -> List[Nic]:
    """Return the verbs devices; those with Ethernet ports (RoCE) are found as Ethernet interfaces."""
    folder = os.path.join(root, _VERBS)
    nics = []
    for name, _ in sorted(((name, "") for name in files.names(folder)), key=_by_number):
        ports = [os.path.join(folder, name, "ports", port) for port in files.names(os.path.join(folder, name, "ports"))]
        if any(files.text(os.path.join(port, "link_layer")) == "Ethernet" for port in ports):
            continue
        address = pci.address_of(os.path.join(folder, name, "device"))
        place = pci.of(root, address)
        up = [port for port in ports if files.text(os.path.join(port, "state")).startswith("4:")]  # 4: ACTIVE
        speed = max([_rate(files.text(os.path.join(port, "rate"))) for port in up or ports], default=0)
        interface = next((net for net, slot in interfaces.items() if slot and slot == address), "")
        nics.append(Nic(name, "infiniband", address, place.numa, bool(up), speed, place.path, interface))
    return nics


def _rate(text: str) -> int:
    # 200 Gb/sec (4X HDR)
    words = text.split()
    try:
        return int(float(words[0]) * 1e9) if len(words) > 1 and words[1] == "Gb/sec" else 0
    except (ValueError, OverflowError):
        return 0


def _net_nic(root: str, name: str, kind: str, address: str) -> Nic:
    folder = os.path.join(root, _NET, name)
    place = pci.of(root, address)
    megabits = files.number(files.text(os.path.join(folder, "speed")), 0)  # -1 without a link
    is_up = files.text(os.path.join(folder, "operstate")) in ("up", "unknown")
    return Nic(name, kind, address, place.numa, is_up, max(0, megabits) * 10**6, place.path, name)
