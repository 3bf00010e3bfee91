"""hwloc's view of a node, from its XML: the independent witness."""

import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

from echelon.hardware.answers import Device
from echelon.topology.node import Cpu, Node

CACHES = ("L3Cache", "L2Cache", "L1Cache")


class Seen(NamedTuple):
    """An object with the cpuset of the nearest object around it that has one."""

    kind: str
    number: int
    name: str
    cpus: frozenset[int]


def xml_of(folder: str) -> str:
    """Return what hwloc reads from a copied tree, or from this machine for "/"."""
    where = [] if folder == "/" else ["--input", folder]
    command = ["lstopo", *where, "--of", "xml", "--whole-system", "--no-io", "-"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def bits(mask: str) -> frozenset[int]:
    """Read hwloc's masks: 0x0000ffff,,0x0000ffff (an empty word is zero)."""
    value = 0
    for word in mask.split(","):
        value = value << 32 | int(word or "0", 16)
    return frozenset(number for number in range(value.bit_length()) if value >> number & 1)


def objects(text: str) -> list[Seen]:
    """Return all objects of a topology."""
    found: list[Seen] = []

    def walk(element: ElementTree.Element, around: frozenset[int]) -> None:
        mine = bits(element.get("cpuset", "")) if element.get("cpuset") else around
        number = int(element.get("os_index", "-1"))
        found.append(Seen(element.get("type", ""), number, element.get("name", ""), mine))
        for child in element.findall("object"):
            walk(child, mine)

    for element in ElementTree.fromstring(text).findall("object"):
        walk(element, frozenset())
    return found


def cpus(text: str) -> tuple[Cpu, ...]:
    """Return the hardware threads as hwloc sees them."""
    seen = objects(text)
    threads = sorted(each.number for each in seen if each.kind == "PU")
    caches = next(
        ([each for each in seen if each.kind == kind] for kind in CACHES if any(o.kind == kind for o in seen)), []
    )

    def around(thread: int, kinds: list[Seen]) -> Seen | None:
        return next((each for each in kinds if thread in each.cpus), None)

    def least(thread: int, kinds: list[Seen], missing: int) -> int:
        found = around(thread, kinds)
        return min(found.cpus) if found else missing

    cores, packages, domains = (
        [each for each in seen if each.kind == kind] for kind in ("Core", "Package", "NUMANode")
    )
    result = []
    for thread in threads:
        package, domain = around(thread, packages), around(thread, domains)
        result.append(
            Cpu(
                thread,
                least(thread, cores, thread),
                package.number if package else -1,
                domain.number if domain else -1,
                least(thread, caches, -1),
            )
        )
    return tuple(result)


def distances(text: str) -> dict[int, dict[int, int]]:
    """Return the table of NUMA distances."""
    for table in ElementTree.fromstring(text).findall("distances2"):
        if table.get("type") == "NUMANode":
            numbers = [int(word) for part in table.findall("indexes") for word in (part.text or "").split()]
            values = [int(word) for part in table.findall("u64values") for word in (part.text or "").split()]
            size = len(numbers)
            return {
                one: {other: values[row * size + column] for column, other in enumerate(numbers)}
                for row, one in enumerate(numbers)
            }
    return {}


def node(path: Path, prefix: str, *, with_numa: bool) -> Node:
    """Return the node of a recorded topology; its devices are the OS devices whose names begin with the prefix."""
    text = path.read_text("utf-8")
    threads = cpus(text)
    domain_of = {cpu.number: cpu.numa for cpu in threads}
    devices = []
    for seen in objects(text):
        number = seen.name.removeprefix(prefix)
        if seen.kind == "OSDev" and seen.name.startswith(prefix) and number.isdigit():
            domains = {domain_of[cpu] for cpu in seen.cpus}
            numa = domains.pop() if with_numa and len(domains) == 1 else -1
            devices.append(Device(int(number), "", "", "", "", numa, tuple(sorted(seen.cpus)), 0, int(number), True))
    everything = tuple(cpu.number for cpu in threads)
    return Node(path.stem, threads, everything, distances(text), {}, tuple(sorted(devices)), (), ())
