"""Parse scontrol and sinfo: a site's configuration, partitions and nodes, from Slurm 20.11 to 25.11."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from echelon import units
from echelon.environment import digits, hostlist
from echelon.errors import EchelonError, UsageError
from echelon.host import Host
from echelon.topology.cpus import parse_cpu_list

CLUSTER_SECONDS = 3.0
CONFIG_SECONDS = 10.0
NODES_SECONDS = 60.0  # a machine of 3,000 nodes prints 4 MB

SINFO = ("sinfo", "--noheader", "--format=%N|%R|%X|%Y|%Z|%m|%G|%f")


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteConfig:
    """The parts of `scontrol show config` that a plan needs."""

    cluster: str
    version: str
    requires_account: bool
    """Whether jobs need an association, which an account provides."""
    enforces_qos: bool
    selects_tres: bool
    """Whether --gpus-per-node is supported; only select/cons_tres does so."""
    node_folder: str
    """Each node's folder of temporary files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePartition:
    """A partition from `scontrol show partition`; None means no limit."""

    name: str
    state: str
    nodes: frozenset[str] = field(repr=False)
    is_default: bool
    is_hidden: bool
    whole_nodes: bool
    max_minutes: int | None
    min_nodes: int | None
    max_nodes: int | None
    max_cpus_per_node: int | None
    memory_per_device_mib: int | None
    cpus_per_device: int | None
    max_memory_per_node_mib: int | None
    restrictions: tuple[str, ...]
    """The users who may use it; empty: everybody. "AllowAccounts=physics"."""
    remarks: tuple[str, ...]
    """Conditions that affect a job and have no key of their own: "QoS=gpu"."""


def ask_cluster(host: Host) -> str:
    """Ask for the cluster's name; raise ToolMissing, ToolSlow, or EchelonError if Slurm does not answer."""
    return read_config(_ask(host, ("scontrol", "show", "config"), CLUSTER_SECONDS)).cluster


def ask_config(host: Host) -> SiteConfig:
    return read_config(_ask(host, ("scontrol", "show", "config"), CONFIG_SECONDS))


def ask_partitions(host: Host) -> list[SitePartition]:
    return read_partitions(_ask(host, ("scontrol", "show", "partition"), CONFIG_SECONDS))


def ask_nodes(host: Host) -> tuple[list[SiteNode], str]:
    """Ask for all nodes; if scontrol fails, ask sinfo, which knows less, and add a remark."""
    try:
        return read_nodes(_ask(host, ("scontrol", "show", "node"), NODES_SECONDS)), ""
    except EchelonError as error:
        nodes = read_sinfo(_ask(host, SINFO, NODES_SECONDS))
        return (
            nodes,
            f"{error.message}: echelon used sinfo instead, which does not know reserved cores and architectures",
        )


def _ask(host: Host, argv: tuple[str, ...], seconds: float) -> str:
    answer = host.ask(argv, timeout_seconds=seconds)
    if answer.exit_code:
        said = (answer.stderr.strip() or answer.stdout.strip() or "nothing more").splitlines()[0]
        raise EchelonError(f"{' '.join(argv)} ended with {answer.exit_code}: {said}", hint="scontrol ping")
    return answer.stdout


def read_config(text: str) -> SiteConfig:
    """Parse `scontrol show config`, whose lines are `ClusterName             = lumi`."""
    settings: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            settings.setdefault(key.strip().lower(), "" if value.strip() == "(null)" else value.strip())
    enforced = set(settings.get("accountingstorageenforce", "").lower().split(","))
    return SiteConfig(
        cluster=settings.get("clustername", ""),
        version=settings.get("slurm_version", ""),
        requires_account=bool(enforced & {"associations", "limits", "qos", "safe", "wckeys", "all"}),
        enforces_qos=bool(enforced & {"qos", "all"}),
        selects_tres="cons_tres" in settings.get("selecttype", ""),
        node_folder=settings.get("tmpfs", ""),
    )


def read_partitions(text: str) -> list[SitePartition]:
    """Parse `scontrol show partition`, with or without --oneliner."""
    records = [record for record in re.split(r"(?m)^(?=PartitionName=)", text) if record.startswith("PartitionName=")]
    return [_partition(dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", record))) for record in records]


def _partition(fields: dict[str, str]) -> SitePartition:
    defaults = dict(re.findall(r"(\w+)=(\d+)", fields.get("JobDefaults", "")))
    sharing = fields.get("OverSubscribe", fields.get("Shared", ""))
    return SitePartition(
        name=fields["PartitionName"],
        state=fields.get("State", "UP"),
        nodes=frozenset(_nodes(fields.get("Nodes", ""))),
        is_default=fields.get("Default") == "YES",
        is_hidden="YES" in (fields.get("Hidden"), fields.get("RootOnly"), fields.get("ReqResv")),
        whole_nodes=sharing == "EXCLUSIVE",
        max_minutes=_minutes(fields.get("MaxTime", "")),
        min_nodes=_limit(fields.get("MinNodes", "")) or None,
        max_nodes=_limit(fields.get("MaxNodes", "")),
        max_cpus_per_node=_limit(fields.get("MaxCPUsPerNode", "")),
        memory_per_device_mib=_limit(defaults.get("DefMemPerGPU", fields.get("DefMemPerGPU", ""))),
        cpus_per_device=_limit(defaults.get("DefCpuPerGPU", fields.get("DefCpuPerGPU", ""))),
        max_memory_per_node_mib=_limit(fields.get("MaxMemPerNode", "")),
        restrictions=tuple(
            f"{key}={fields[key]}"
            for key in ("AllowGroups", "AllowAccounts", "DenyAccounts", "AllowQos", "DenyQos")
            if fields.get(key, "ALL") not in ("ALL", "(null)", "")
        ),
        remarks=tuple(
            f"{key}={fields[key]}"
            for key in ("QoS", "DefMemPerCPU", "MaxMemPerCPU", "MaxCPUsPerSocket", "DefaultTime", "TRESBillingWeights")
            if fields.get(key, "N/A") not in ("N/A", "UNLIMITED", "NONE", "(null)", "")
        ),
    )


def _nodes(text: str) -> list[str]:
    if text in ("", "(null)"):
        return []
    try:
        return hostlist.expand(text)
    except ValueError:
        return []


def _minutes(text: str) -> int | None:
    if text.upper() in ("", "UNLIMITED", "INFINITE", "NONE", "PARTITION_LIMIT"):
        return None
    try:
        return units.minutes(text)
    except UsageError:
        return None


def _limit(text: str) -> int | None:
    """Parse a limit; UNLIMITED, INFINITE, N/A and the like mean no limit."""
    return int(text) if digits.is_number(text) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteNode:
    """A node."""

    name: str
    architecture: str
    """Empty for a node that never registered."""
    features: tuple[str, ...]
    devices: tuple[tuple[str, int], ...]
    """Slurm's names of devices, with counts: ("gpu:mi250", 8)."""
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
    # these count the threads of each core consecutively
    numbers = parse_cpu_list(fields.get("CPUSpecList", fields.get("CpuSpecList", "")))
    reserved = tuple(sorted({number // threads for number in numbers}))
    num_reserved = _number(fields.get("CoreSpecCount", "")) or len(reserved)
    memory = (_number(fields.get("RealMemory", "")) or 0) - (_number(fields.get("MemSpecLimit", "")) or 0)
    gres = _gres(fields.get("Gres", ""))
    return SiteNode(
        name=fields["NodeName"],
        architecture=fields.get("Arch", ""),
        features=tuple(_words(fields.get("AvailableFeatures", fields.get("Features", "")))),
        devices=tuple((name, count) for name, count in gres if name.partition(":")[0] == "gpu"),
        num_cores=num_cores,
        threads_per_core=threads,
        reserved_cores=reserved,
        num_unnamed_reserved=max(0, num_reserved - len(reserved)),
        memory_mib=max(0, memory),
        partitions=tuple(_words(fields.get("Partitions", ""))),
    )


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
