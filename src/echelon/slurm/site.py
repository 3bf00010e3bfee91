"""Parse scontrol and sinfo: a site's configuration, partitions and nodes, from Slurm 20.11 to 25.11."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from echelon import units
from echelon.environment import digits, hostlist
from echelon.errors import EchelonError, UsageError
from echelon.host import Host
from echelon.slurm.site_node import SiteNode, read_nodes, read_sinfo

CLUSTER_SECONDS = 3.0
CONFIG_SECONDS = 10.0
NODES_SECONDS = 60.0
"""A machine of 3,000 nodes prints 4 MB."""

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
    memory_per_node_mib: int | None
    max_memory_per_node_mib: int | None
    restrictions: tuple[str, ...]
    """The users who may use it; empty: everybody. "AllowAccounts=physics"."""
    remarks: tuple[str, ...]
    """Conditions that affect a job and have no key of their own: "QoS=gpu"."""


def ask_cluster(host: Host) -> str:
    """Ask for the cluster's name; raise ToolMissing, ToolSlow, or EchelonError if Slurm does not answer."""
    return read_config(_ask(host, ("scontrol", "show", "config"), CLUSTER_SECONDS)).cluster


def ask_config(host: Host) -> SiteConfig:
    """Ask for the configuration."""
    return read_config(_ask(host, ("scontrol", "show", "config"), CONFIG_SECONDS))


def ask_partitions(host: Host) -> list[SitePartition]:
    """Ask for the partitions that this user may see."""
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
        memory_per_node_mib=_limit(fields.get("DefMemPerNode", "")),
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
