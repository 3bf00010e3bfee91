"""Parse the nodes of a site from scontrol or sinfo."""

from __future__ import annotations

import re
from dataclasses import dataclass

from echelon.environment import digits, hostlist
from echelon.topology.cpu_lists import parse_cpu_list


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteNode:
    """A node."""

    name: str
    architecture: str
    """Empty for a node that never registered."""
    features: tuple[str, ...]
    devices: tuple[tuple[str, int], ...]
    """Slurm's names of devices, with counts: ("gpu:mi250", 8)."""
    has_local_disk: bool
    num_cores: int
    threads_per_core: int
    """Hardware threads that Slurm hands out for each core."""
    reserved_cores: tuple[int, ...]
    num_unnamed_reserved: int
    """The number of cores that Slurm reserves without saying which."""
    memory_mib: int
    """The memory that jobs can get."""
    partitions: tuple[str, ...]


def read_nodes(text: str) -> list[SiteNode]:
    """Parse `scontrol show node`, with or without --oneliner."""
    records = [record for record in re.split(r"(?m)^(?=NodeName=)", text) if record.startswith("NodeName=")]
    return [node for record in records if (node := _node(_fields(record)))]


def read_sinfo(text: str) -> list[SiteNode]:
    """Parse sinfo's lines: nid[005000-005003]|small-g|1|64|1|491520|gpu:mi250:8(S:0)|(null)."""
    nodes: dict[str, SiteNode] = {}
    for line in text.splitlines():
        parts = line.strip().split("|")
        if len(parts) != 8:
            continue
        names, partition, sockets, cores, threads, memory, gres, features = parts
        fields = {
            "Sockets": sockets, "CoresPerSocket": cores, "ThreadsPerCore": threads, "Gres": gres,
            "RealMemory": memory, "AvailableFeatures": features, "Partitions": partition,
        }  # fmt: skip
        for name in hostlist.expand(names):
            known = nodes.get(name)
            both = f"{','.join(known.partitions)},{partition}" if known else partition
            if node := _node({**fields, "NodeName": name, "Partitions": both}):
                nodes[name] = node
    return list(nodes.values())


def _fields(record: str) -> dict[str, str]:
    """Return the fields of a record; the first of a name counts, because a Reason may contain anything."""
    fields: dict[str, str] = {}
    for key, value in re.findall(r"(?:^|\s)(\w+)=(\S*)", record):
        fields.setdefault(key, value)
    return fields


def _node(fields: dict[str, str]) -> SiteNode | None:
    sockets, per_socket = _number(fields.get("Sockets", "")), _number(fields.get("CoresPerSocket", ""))
    if not sockets or not per_socket:
        return None  # a dynamic or future node that has not registered
    num_cores = sockets * per_socket
    # CPUs=64 in slurm.conf hands out one thread of each of 64 cores, whatever ThreadsPerCore is
    threads = _number(fields.get("ThreadsPerCore", "")) or 1
    total = _number(fields.get("CPUTot", "")) or num_cores * threads
    threads = max(1, min(threads, total // num_cores))
    reserved = _reserved(fields.get("CPUSpecList", fields.get("CpuSpecList", "")), threads)
    num_reserved = _number(fields.get("CoreSpecCount", "")) or len(reserved)
    memory = (_number(fields.get("RealMemory", "")) or 0) - (_number(fields.get("MemSpecLimit", "")) or 0)
    gres = _gres(fields.get("Gres", ""))
    return SiteNode(
        name=fields["NodeName"],
        architecture=fields.get("Arch", ""),
        features=tuple(_words(fields.get("AvailableFeatures", fields.get("Features", "")))),
        devices=tuple((name, count) for name, count in gres if name.partition(":")[0] == "gpu"),
        has_local_disk=(_number(fields.get("TmpDisk", "")) or 0) > 0,
        num_cores=num_cores,
        threads_per_core=threads,
        reserved_cores=reserved,
        num_unnamed_reserved=max(0, num_reserved - len(reserved)),
        memory_mib=max(0, memory),
        partitions=tuple(_words(fields.get("Partitions", ""))),
    )


def _reserved(text: str, threads: int) -> tuple[int, ...]:
    """Return the cores for Slurm's CPU numbers, which count the threads of each core consecutively."""
    return tuple(sorted({number // threads for number in parse_cpu_list(text)}))


def _gres(text: str) -> list[tuple[str, int]]:
    """Parse gres such as gpu:mi250:8(S:0-3),gpu:a100_1g.5gb:7(S:0),nvme:3600 into names and counts."""
    counts = []
    for item in _words(re.sub(r"\([^)]*\)", "", text)):
        name, colon, count = item.rpartition(":")
        if colon and re.fullmatch(r"\d+[KMGT]?", count):
            if digits.is_number(count):
                counts.append((name.removesuffix(":no_consume"), int(count)))
        else:
            counts.append((item, 1))
    return [(name, count) for name, count in counts if count]


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word and word != "(null)"]


def _number(text: str) -> int | None:
    match = re.match(r"[0-9]{1,15}", text)  # sinfo writes 128+ if nodes differ
    return int(match.group()) if match else None
