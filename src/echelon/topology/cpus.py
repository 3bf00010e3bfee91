"""Read the node's hardware threads, caches and NUMA domains from sysfs, and which of them this process may use."""

import os
from typing import Dict, Iterable, List, NamedTuple, Set, Tuple

from ..environment import digits
from ..hardware import files
from .node import Cpu

_CPUS = "sys/devices/system/cpu"
_DOMAINS = "sys/devices/system/node"
_CPUSETS = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
"""The files of a cgroup of version 2 and 1; not every level has the controller, so the nearest counts."""


class Domains(NamedTuple):
    """The NUMA domains, from sysfs."""

    of_cpu: Dict[int, int]
    distances: Dict[int, Dict[int, int]]
    memory_bytes: Dict[int, int]


def read_domains(root: str) -> Domains:
    """Read the NUMA domains, including those without hardware threads (a GH200's own memory is one)."""
    folder = os.path.join(root, _DOMAINS)
    numbers = files.numbers(folder, "node")
    domains = Domains({}, {}, {})
    for number in numbers:
        place = os.path.join(folder, f"node{number}")
        for cpu in parse_cpu_list(files.text(os.path.join(place, "cpulist"))):
            domains.of_cpu[cpu] = number
        row = [files.number(word, 0) for word in files.text(os.path.join(place, "distance")).split()]
        if len(row) == len(numbers):
            domains.distances[number] = {other: row[index] for index, other in enumerate(numbers)}
        memory = files.fields(os.path.join(place, "meminfo")).get(f"Node {number} MemTotal", "")  # 131573184 kB
        if (kibibytes := files.number(memory.partition(" ")[0])) >= 0:
            domains.memory_bytes[number] = kibibytes * 1024
    return domains


def read_cpus(root: str, domain_of: Dict[int, int]) -> Tuple[Cpu, ...]:
    """Read the hardware threads that are online.

    One file is read per physical core, cache and socket, not per thread: each file lists all of its threads.
    """
    folder = os.path.join(root, _CPUS)
    online = parse_cpu_list(files.text(os.path.join(folder, "online")))
    numbers = online or tuple(number for number in files.numbers(folder, "cpu"))
    level = _last_cache(os.path.join(folder, f"cpu{numbers[0]}")) if numbers else ""
    core: Dict[int, int] = {}
    socket: Dict[int, int] = {}
    cache: Dict[int, int] = {}
    for number in numbers:
        place = os.path.join(folder, f"cpu{number}")
        if number not in core:
            siblings = _listed(place, number, "topology/core_cpus_list", "topology/thread_siblings_list")
            core.update(dict.fromkeys(siblings or (number,), min(siblings or (number,))))
        if number not in socket:
            value = files.number(files.text(os.path.join(place, "topology/physical_package_id")))
            shared = _listed(place, number, "topology/package_cpus_list", "topology/core_siblings_list")
            socket.update(dict.fromkeys(shared or (number,), max(value, -1)))
        if number not in cache:
            shared = _listed(place, number, f"cache/{level}/shared_cpu_list") if level else ()
            cache.update(dict.fromkeys(shared or (number,), min(shared) if shared else -1))
    return tuple(
        Cpu(number, core[number], socket[number], domain_of.get(number, -1), cache[number]) for number in numbers
    )


def _listed(place: str, number: int, *names: str) -> Tuple[int, ...]:
    """Return the threads in the first of these files that contains thread `number`."""
    for name in names:
        threads = parse_cpu_list(files.text(os.path.join(place, name)))
        if number in threads:
            return threads
    return ()


def _last_cache(place: str) -> str:
    """Return the folder of the last-level cache: index3 on most processors."""
    best, name = 0, ""
    for number in files.numbers(os.path.join(place, "cache"), "index"):
        level = files.number(files.text(os.path.join(place, f"cache/index{number}/level")), 0)
        if level > best:
            best, name = level, f"index{number}"
    return name


def read_allowed(root: str) -> Tuple[int, ...]:
    """Return the hardware threads that the affinity mask and the cpuset cgroups allow."""
    if os.path.realpath(root) == "/":
        allowed = set(os.sched_getaffinity(0))
    else:
        allowed = set(parse_cpu_list(files.fields(os.path.join(root, "proc/self/status")).get("Cpus_allowed_list", "")))
        allowed = allowed or set(parse_cpu_list(files.text(os.path.join(root, _CPUS, "online"))))
    for folders in files.cgroups("cpuset", root):
        lists = (files.text(os.path.join(folder, name)) for folder in folders for name in _CPUSETS)
        cpus = next(filter(None, map(set, map(parse_cpu_list, lists))), allowed)
        # The mask was granted within the cpuset; a contradicting cpuset is another's, seen from inside a container.
        allowed = (allowed & cpus) or allowed
    return tuple(sorted(allowed))


MOST_CPUS = 1 << 16  # Linux has at most 8192; a longer list is invalid


def parse_cpu_list(text: str) -> Tuple[int, ...]:
    """Parse a list such as 0-3,8; ignore parts that are no number or range."""
    numbers: Set[int] = set()
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if _is_number(low) and (not high or _is_number(high)):
            numbers.update(range(int(low), int(high or low) + 1))
    return tuple(sorted(numbers))


def _is_number(word: str) -> bool:
    return digits.whole(word, MOST_CPUS) < MOST_CPUS


def cpu_list(cpus: Iterable[int]) -> str:
    """Write hardware threads as a list: 49-55,57."""
    parts: List[str] = []
    low = high = -2
    for cpu in [*sorted(set(cpus)), -1]:
        if cpu == high + 1:
            high = cpu
            continue
        if low >= 0:
            parts.append(str(low) if low == high else f"{low}-{high}")
        low = high = cpu
    return ",".join(parts)


def mask(cpus: Iterable[int]) -> str:
    """Write hardware threads as a hexadecimal mask, whole 64-bit words: 0x00fe000000000000."""
    bits = 0
    for cpu in cpus:
        if cpu >= 0:
            bits |= 1 << cpu
    return f"0x{bits:0{16 * max(1, -(-bits.bit_length() // 64))}x}"
