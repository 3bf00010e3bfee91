"""`echelon topology`: show this node's hardware as a table and as data."""

from __future__ import annotations

import os
from collections.abc import Iterable

from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.errors import UsageError
from echelon.hardware import vendors
from echelon.hardware.answers import Device
from echelon.topology import binding, discover
from echelon.topology.node import Node
from echelon.units import aligned, counted, size

OPTIONS: tuple[Option, ...] = (
    Option(names=("--json",), help="print it as data"),
    Option(names=("--root",), value="DIR", takes="folder",
           help="read a copy of another node's /sys, /proc and /dev below DIR"),
    Option(names=("-h", "--help"), help="show this"),
)  # fmt: skip
HELP = Help(
    command="topology",
    about="Show the hardware of this node: cores and NUMA domains, devices and the cores nearest to them, network "
    "interfaces, links, and the parts that the cgroup allows. Needs neither root nor vendor tools.",
    groups=(("options", OPTIONS),),
    example="echelon topology --json",
)
LEGEND = (
    ("X", "the same device"),
    *(
        (vendor.interconnect.sign + end, meaning)
        for vendor in vendors.BY_NAME
        for end, meaning in (("#", vendor.interconnect.legend), ("*", vendor.interconnect.forwarded))
        if meaning
    ),
    ("PIX", "the same PCI switch"),
    ("PHB", "the same PCI root complex"),
    ("NODE", "the same NUMA domain"),
    ("SYS", "across NUMA domains"),
    ("?", "not known"),
)
UNKNOWN = "?"


def main(arguments: list[str]) -> int:
    scanned = HELP.scan_all(arguments)
    values = scanned.last
    if scanned.rest:
        raise UsageError(
            f"echelon topology takes options alone, and {scanned.rest[0]!r} is none", hint="echelon topology --help"
        )
    root = values.get("root", "/")
    if not os.path.isdir(root):
        raise UsageError(
            f"--root {root or repr('')}: this directory does not exist", hint="echelon topology --root copy/"
        )
    node = discover.read(root, os.environ)
    if not node.cpus:
        raise UsageError(
            f"--root {root}: it has no sys/devices/system/cpu, so it is not a copy of a node",
            hint="echelon topology --root DIR   where DIR/sys and DIR/proc are copies of a node's",
        )
    if "json" in values:
        import json

        print(json.dumps(discover.as_dict(node), indent=1))
    else:
        print("\n".join(table(node)))
    return 0


def table(node: Node) -> list[str]:
    lines = [*_summary(node), "", *_domains(node)]
    if node.devices:
        lines += ["", *_devices(node)]
    if node.nics:
        lines += ["", *_nics(node)]
    if len(node.devices) > 1:
        letters = [[relation(node, one, other) for other in node.devices] for one in node.devices]
        rows = [[str(device.number), *letters[index]] for index, device in enumerate(node.devices)]
        used = {letter.rstrip("0123456789") for row in letters for letter in row} - {"X"}
        legend = [f"{sign}: {meaning}" for sign, meaning in LEGEND if sign.rstrip("#") in used]
        lines += ["", *aligned([["", *(str(device.number) for device in node.devices)], *rows]), *legend]
    return lines


def _summary(node: Node) -> list[str]:
    cores = discover.num_cores(node)
    sockets = len({cpu.socket for cpu in node.cpus})
    domains = len({cpu.numa for cpu in node.cpus if cpu.numa >= 0})
    usable = {cpu.core for cpu in node.cpus if cpu.number in set(node.allowed)}
    parts = [
        counted(sockets, "socket"),
        counted(cores, "core"),
        counted(len(node.cpus), "hardware thread"),
        counted(domains, "NUMA domain") if domains else "NUMA domains not known",
        counted(len(node.devices), "device"),
    ]
    whole = "all cores" if len(usable) == cores else f"{len(usable)} of {cores} cores"
    lines = [f"{node.name or 'this node'}: {', '.join(parts)}"]
    lines.append(f"allowed: {binding.cpu_list(node.allowed) or 'nothing'} ({whole})")
    hidden = [str(device.number) for device in node.devices if not device.is_allowed]
    if hidden:
        lines.append(f"not allowed: {'devices' if len(hidden) > 1 else 'device'} {', '.join(hidden)}")
    return lines


def _domains(node: Node) -> list[str]:
    rows = []
    for number in discover.domains(node) or [-1]:
        cpus = [cpu.number for cpu in node.cpus if cpu.numa == number]
        memory = node.numa_memory_bytes.get(number, 0)
        if not cpus and not memory:
            continue  # a GH200 has many such domains for parts of its GPU's memory
        here = [str(device.number) for device in node.devices if device.numa == number]
        allowed = binding.cpu_list(set(cpus) & set(node.allowed))
        rows.append(
            [_known(number), binding.cpu_list(cpus) or "none", allowed or "none", _size(memory), " ".join(here) or "-"]
        )
    return aligned([["NUMA", "CORES", "ALLOWED", "MEMORY", "DEVICES"], *rows])


def _devices(node: Node) -> list[str]:
    near = discover.near_cores(node)
    rows = []
    for device in node.devices:
        cores = near.get(device.number, ())
        nic = binding.nearest_nic(node, device)
        away = binding.distance(node, cores, device)
        rows.append(
            [
                str(device.number),
                device.model or UNKNOWN,
                device.pci or UNKNOWN,
                str(device.chip),
                _known(device.numa),
                _size(device.memory_bytes),
                (binding.cpu_list(cores) or "none") if device.is_allowed else "not allowed",
                str(away or UNKNOWN) if cores else "-",
                nic.name if nic else UNKNOWN if node.nics else "-",
            ]
        )
    return aligned([["DEVICE", "MODEL", "PCI", "CHIP", "NUMA", "MEMORY", "NEAREST CORES", "DISTANCE", "NIC"], *rows])


def _nics(node: Node) -> list[str]:
    rows = [
        [
            nic.name,
            nic.kind,
            f"{nic.bits_per_second / 1e9:g} Gbit/s" if nic.bits_per_second else UNKNOWN,
            _known(nic.numa),
            nic.pci or UNKNOWN,
            nic.interface or "-",
            "up" if nic.is_up else "down",
        ]
        for nic in node.nics
    ]
    return aligned([["NIC", "KIND", "SPEED", "NUMA", "PCI", "INTERFACE", "STATE"], *rows])


def relation(node: Node, device: Device, other: Device) -> str:
    """Return the connection of two devices in the abbreviations of the vendors' own tools."""
    if device.number == other.number:
        return "X"
    direct = {frozenset(link[:2]): link for link in node.device_links}
    link = direct.get(frozenset((device.number, other.number)))
    if link:
        return f"{vendors.interconnect(link[2]).sign}{link[3] or ''}"
    joins = vendors.named(device.vendor).interconnect
    if joins.forwarded and _is_reached(device.number, other.number, direct):
        return f"{joins.sign}*"
    return _over_pci(device, other)


def _over_pci(device: Device, other: Device) -> str:
    shared = os.path.commonpath([device.pci_path, other.pci_path]) if device.pci_path and other.pci_path else ""
    if shared:
        # pci0000:00/0000:00:01.1/0000:01:00.0: the root complex, its port, then a switch
        return "PIX" if "/" in shared else "PHB"
    if device.numa < 0 or other.numa < 0:
        return UNKNOWN
    return "NODE" if device.numa == other.numa else "SYS"


def _is_reached(start: int, end: int, links: Iterable[frozenset[int]]) -> bool:
    seen, edges = {start}, [set(link) for link in links]
    while grown := {number for edge in edges if edge & seen for number in edge} - seen:
        seen |= grown
    return end in seen


def _known(number: int) -> str:
    return str(number) if number >= 0 else UNKNOWN


def _size(num_bytes: int) -> str:
    return size(num_bytes) if num_bytes else UNKNOWN
