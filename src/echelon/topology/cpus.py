"""Read the node's hardware threads, caches and NUMA domains from sysfs, and which of them this process may use."""

import os
from typing import Dict, Iterable, List, NamedTuple, Set, Tuple

from ..environment import digits
from ..hardware import files
from .node import Cpu

_CPUS = "sys/devices/system/cpu"
_DOMAINS = "sys/devices/system/node"


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
        memory = _memory_bytes(files.text(os.path.join(place, "meminfo")))
        if memory >= 0:
            domains.memory_bytes[number] = memory
    return domains


def _memory_bytes(meminfo: str) -> int:
    # Node 0 MemTotal:       131573184 kB
    for line in meminfo.splitlines():
        words = line.split()
        if len(words) >= 4 and words[2] == "MemTotal:":
            kilobytes = files.number(words[3])
            return kilobytes * 1024 if kilobytes >= 0 else -1
    return -1


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
        allowed = set(_allowed_of_status(files.text(os.path.join(root, "proc/self/status"))))
        allowed = allowed or set(parse_cpu_list(files.text(os.path.join(root, _CPUS, "online"))))
    for cpus in _cpusets(root):
        # The mask was granted within the cpuset; a contradicting cpuset is another's, seen from inside a container.
        allowed = (allowed & cpus) or allowed
    return tuple(sorted(allowed))


def _allowed_of_status(status: str) -> Tuple[int, ...]:
    for line in status.splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return parse_cpu_list(line.partition(":")[2])
    return ()


def _cpusets(root: str) -> List[Set[int]]:
    """Return the threads that each cpuset cgroup of this process leaves."""
    cpusets = []
    for line in files.text(os.path.join(root, "proc/self/cgroup")).splitlines():
        # 0::/system.slice/slurmstepd.scope/job_7   (v2)   or   3:cpuset:/slurm/uid_1/job_7   (v1)
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            cpusets.append(_cpuset(os.path.join(root, "sys/fs/cgroup"), path, "cpuset.cpus.effective"))
        elif "cpuset" in controllers.split(","):
            mount = os.path.join(root, "sys/fs/cgroup/cpuset")
            cpusets.append(_cpuset(mount, path, "cpuset.effective_cpus", "cpuset.cpus"))
    return [cpus for cpus in cpusets if cpus]


def _cpuset(mount: str, path: str, *names: str) -> Set[int]:
    """Return the nearest cpuset from a cgroup upwards: not every level has the controller."""
    words = [word for word in path.split("/") if word not in ("", "..")]
    for depth in range(len(words), -1, -1):
        for name in names:
            cpus = parse_cpu_list(files.text(os.path.join(mount, *words[:depth], name)))
            if cpus:
                return set(cpus)
    return set()


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
    words = max(1, -(-bits.bit_length() // 64))
    return f"0x{bits:0{16 * words}x}"
