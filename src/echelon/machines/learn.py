"""Describe a machine from its Slurm: partitions with their limits, and node types."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timezone
from typing import Any

from echelon import units
from echelon.errors import EchelonError
from echelon.hardware import vendors
from echelon.host import Host, ToolMissing
from echelon.machines import schema
from echelon.machines.machine import Machine, NearestCores, NodeType, Partition
from echelon.scheduler.slurm import site
from echelon.scheduler.slurm.site import SiteConfig, SiteNode, SitePartition

MIB = 1 << 20
_PURPOSES = (
    ("test", ("test", "debug", "dev", "devel", "short-test")),
    ("interactive", ("interactive", "jupyter", "vis")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A machine as its Slurm describes it, with omissions and assumptions."""

    machine: Machine
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Site:
    """All of Slurm's answers."""

    config: SiteConfig
    partitions: Sequence[SitePartition]
    nodes: Sequence[SiteNode]
    source: str
    today: date


def learn(host: Host, *, name: str = "") -> Learned:
    """Ask Slurm; raise EchelonError if it is missing or does not answer."""
    try:
        config = site.ask_config(host)
    except ToolMissing as error:
        raise EchelonError(
            f"{error.message}: there is no Slurm to learn from", hint="on a login node: echelon machines learn"
        ) from None
    nodes, remark = site.ask_nodes(host)
    seen = _Site(
        config=config,
        partitions=site.ask_partitions(host),
        nodes=nodes,
        source=f"scontrol of {config.cluster or 'a cluster without a name'}, Slurm {config.version or 'unknown'}",
        today=datetime.fromtimestamp(host.now(), timezone.utc).date(),
    )
    return _describe(seen, name or config.cluster, [remark] if remark else [])


def _describe(seen: _Site, name: str, remarks: list[str]) -> Learned:
    kinds = _kinds(seen)
    partitions = []
    for partition in seen.partitions:
        here = [node for node in seen.nodes if node.name in partition.nodes]
        here = here or [node for node in seen.nodes if partition.name in node.partitions]
        if reason := _why_not(partition, here):
            remarks.append(f"partition {partition.name} is left out: {reason}")
            continue
        partitions.append(_partition(seen, partition, here, kinds))
    used = {partition.node_type for partition in partitions}
    machine = Machine(
        source=seen.source,
        seen=seen.today,
        note=_machine_note(seen.config),
        name=name,
        title=name,
        clusters=(seen.config.cluster,) if seen.config.cluster else (),
        account="required" if seen.config.requires_account else "optional",
        device_option="--gpus-per-node" if seen.config.selects_tres else "--gres",
        complete=not any(partition.is_hidden for partition in seen.partitions),
        partitions=tuple(partitions),
        node_types=tuple(kind for kind in dict.fromkeys(kinds.values()) if kind.name in used),
    )
    return Learned(machine=machine, remarks=tuple(remarks))


def _machine_note(config: SiteConfig) -> str:
    notes = ["Slurm asks for an account: AccountingStorageEnforce."] if config.requires_account else []
    if config.enforces_qos:
        notes.append("It enforces QOS, whose limits scontrol does not show: sacctmgr show qos.")
    return " ".join(notes)


def _why_not(partition: SitePartition, here: Sequence[SiteNode]) -> str:
    if partition.state != "UP":
        return f"its state is {partition.state}"
    if partition.is_hidden:
        return "it is hidden, for root alone or for reservations"
    return "" if here else "it has no nodes that ever registered"


def _partition(
    seen: _Site, partition: SitePartition, here: Sequence[SiteNode], kinds: dict[str, NodeType]
) -> Partition:
    counts = Counter(kinds[node.name] for node in here)
    # a partition with any devices exists for them
    kind = max(counts, key=lambda one: (bool(one.num_devices), counts[one]))
    most = counts[kind]
    purpose = next((purpose for purpose, words in _PURPOSES if _is_called(partition.name, words)), "batch")
    notes = [f"Nodes: {len(here)}."]
    if len(counts) > 1:
        others = ", ".join(f"{one.name} ({count})" for one, count in counts.most_common() if one != kind)
        notes.append(f"Beside {most} of {kind.name} there are nodes of other kinds: {others}.")
    if purpose != "batch":
        notes.append(f"Taken for {purpose} because of its name.")
    if partition.remarks:
        notes.append(f"Slurm also says {', '.join(partition.remarks)}.")
    return Partition(
        source=seen.source,
        seen=seen.today,
        note=" ".join(notes),
        name=partition.name,
        node_type=kind.name,
        purpose=purpose,
        preference=0 if partition.is_default else 1,
        whole_nodes=partition.whole_nodes,
        max_minutes=partition.max_minutes,
        min_nodes=partition.min_nodes if (partition.min_nodes or 0) > 1 else None,
        max_nodes=min(most, partition.max_nodes or most),
        max_cores_per_node=_cores(partition.max_cpus_per_node, kind),
        max_memory_bytes_per_node=_bytes(partition.max_memory_per_node_mib),
        condition=", ".join(partition.restrictions),
    )


def _is_called(name: str, words: Sequence[str]) -> bool:
    parts = re.split(r"[^a-z0-9]+", name.lower())
    return any(part == word or part in (f"gpu{word}", f"{word}gpu") for part in parts for word in words)


def _cores(cpus: int | None, kind: NodeType) -> int | None:
    return None if cpus is None else cpus // (kind.threads_per_core or 1)


def _bytes(mib: int | None) -> int | None:
    return None if mib is None else mib * MIB


def _kinds(seen: _Site) -> dict[str, NodeType]:
    """Return the type of each node by its name; nodes with equal relevant facts share a type."""
    groups: dict[tuple[object, ...], list[SiteNode]] = {}
    for node in seen.nodes:
        groups.setdefault(_alike(node), []).append(node)
    _adopt_unregistered(groups)
    kinds: dict[str, NodeType] = {}
    taken: set[str] = set()
    for nodes in sorted(groups.values(), key=len, reverse=True):
        kind = _kind(seen, nodes)
        names = [kind.name, f"{kind.name}-{(kind.memory_bytes or 0) // units.GIB}g"]
        names += [f"{kind.name}-{number}" for number in range(2, len(taken) + 3)]
        name = next(name for name in names if name not in taken)
        taken.add(name)
        kinds.update(dict.fromkeys((node.name for node in nodes), replace(kind, name=name)))
    return kinds


def _alike(node: SiteNode, *, architecture: str | None = None) -> tuple[object, ...]:
    return (
        node.architecture if architecture is None else architecture,
        node.devices, node.num_cores, node.threads_per_core, node.reserved_cores, node.num_unnamed_reserved,
        node.memory_mib, node.features,
    )  # fmt: skip


def _adopt_unregistered(groups: dict[tuple[object, ...], list[SiteNode]]) -> None:
    """Add nodes that never registered their architecture to the only group with otherwise equal facts."""
    for key in [key for key in groups if key[0] == ""]:
        same = [other for other in groups if other[0] != "" and other[1:] == key[1:]]
        if len(same) == 1:
            groups[same[0]] += groups.pop(key)


def _kind(seen: _Site, nodes: Sequence[SiteNode]) -> NodeType:
    node = nodes[0]
    gres, num_devices = node.devices[0] if node.devices else ("", 0)
    chip = gres.partition(":")[2]
    here = [partition for partition in seen.partitions if any(one.name in partition.nodes for one in nodes)]
    usable = node.num_cores - node.num_unnamed_reserved - len(node.reserved_cores)
    cores, memory, share_note = _share(node, num_devices, usable, here)
    return NodeType(
        source=seen.source,
        seen=seen.today,
        note=" ".join([*_kind_notes(node), share_note]).strip(),
        name=re.sub(r"[^\w.-]+", "-", chip.lower()) or ("gpu" if num_devices else "cpu"),
        chip=chip,
        vendor=_vendor(chip, node.features) if num_devices else "none",
        num_nodes=len(nodes),
        num_devices=num_devices,
        gres=gres,
        features=node.features,
        architecture=node.architecture,
        num_cores=node.num_cores - node.num_unnamed_reserved,
        threads_per_core=node.threads_per_core,
        reserved_cores=node.reserved_cores,
        memory_bytes=node.memory_mib * MIB or None,
        cores_per_device=cores,
        memory_bytes_per_device=memory,
        scratch=seen.config.node_folder,
    )


def _kind_notes(node: SiteNode) -> list[str]:
    notes = []
    if node.num_unnamed_reserved:
        notes.append(
            f"Slurm keeps {node.num_unnamed_reserved} of {node.num_cores} cores and does not say which: "
            "they are not counted here."
        )
    if len(node.devices) > 1:
        others = ", ".join(f"{name}:{count}" for name, count in node.devices[1:])
        notes.append(f"The node has other devices as well: {others}.")
    return notes


def _share(
    node: SiteNode, num_devices: int, usable: int, here: Sequence[SitePartition]
) -> tuple[int | None, int | None, str]:
    """Return the cores and the memory of one device, and their source."""
    if not num_devices:
        return None, None, ""
    given_cores = min((cpus for row in here if (cpus := row.cpus_per_device)), default=None)
    given_mib = min((mib for row in here if (mib := row.memory_per_device_mib)), default=None)
    cores = (given_cores // node.threads_per_core or 1) if given_cores else usable // num_devices
    memory = given_mib * MIB if given_mib else node.memory_mib * MIB // num_devices // units.GIB * units.GIB
    words = [
        f"cores {'by DefCpuPerGPU' if given_cores else 'an equal part'}",
        f"memory {'by DefMemPerGPU' if given_mib else 'an equal part in whole GiB'}",
    ]
    return cores or None, memory or None, f"Share of a device: {', '.join(words)}."


def _vendor(chip: str, features: Sequence[str]) -> str:
    for text in (chip.lower(), *(feature.lower() for feature in features)):
        for vendor in vendors.BY_NAME:
            if text and re.match(vendor.chips, text):
                return vendor.name
    return "unknown"


QUEUE_SECONDS = 600.0  # how long the step may wait for its node


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """A node's statements about its devices; None and empty mean unknown."""

    nearest: tuple[NearestCores, ...]
    vendor: str
    num_chips: int | None
    device_memory_bytes: int | None


def probe(host: Host, partition: str, kind: NodeType, *, archive: str, options: Sequence[str], today: date) -> Probed:
    """Read the topology of one node of the partition; raise EchelonError if that fails.

    `archive` is node.pyz, in a folder that the node sees; `options` are the user's own for srun, such as an account.
    """
    argv = command(partition, kind, archive=archive, options=options)
    answer = host.ask(argv, timeout_seconds=QUEUE_SECONDS)
    if answer.exit_code:
        lines = [line for line in answer.stderr.splitlines() if line.strip()]
        said = next((line for line in lines if not line.startswith("srun: ")), lines[-1] if lines else "nothing")
        raise EchelonError(
            f"the probe of partition {partition} ended with {answer.exit_code}: {said}",
            hint="echelon machines learn   without --probe",
        )
    return read(answer.stdout, partition, reserved=kind.reserved_cores, today=today)


def command(partition: str, kind: NodeType, *, archive: str, options: Sequence[str]) -> tuple[str, ...]:
    """Return the command of the step: it takes a whole node for a moment, to see all devices."""
    gres = f"--gres={kind.gres}:{kind.num_devices}" if kind.num_devices else ""
    return (
        "srun", f"--partition={partition}", "--nodes=1", "--ntasks=1", "--exclusive", "--cpu-bind=none", "--time=5",
        "--mpi=none", "--input=none", *((gres,) if gres else ()), *options, "python3", "-I", "-S", archive, "topology",
    )  # fmt: skip


def read(text: str, partition: str, *, reserved: Sequence[int], today: date) -> Probed:
    """Read {"format":1,"devices":[{"number":0,"numa":3,"cores":[49,50],"pci":"0000:c1:00.0","nic":"hsn0"}]}."""
    try:
        topology = json.loads(text)
        if topology["format"] != 1:
            raise EchelonError(f"the probe answers in format {topology['format']}, but this echelon reads format 1")
        devices = list(topology["devices"])
        # the first hardware thread stands for its core: Slurm may hand out the others, or not
        siblings = _siblings(topology) | frozenset(reserved)
        rows = [_row(device, partition, siblings, today) for device in devices]
    except (ValueError, KeyError, TypeError) as error:
        raise EchelonError(f"the probe of partition {partition} gave no topology: {error!r}") from None
    chips = {device["chip"] for device in devices if "chip" in device}
    return Probed(
        nearest=tuple(row for row in rows if row.cores),
        vendor=next((str(device["vendor"]) for device in devices if device.get("vendor")), ""),
        num_chips=len(chips) or None,
        device_memory_bytes=next((device["memory_bytes"] for device in devices if device.get("memory_bytes")), None),
    )


def _siblings(topology: dict[str, Any]) -> frozenset[int]:
    """Return all hardware threads except the first of each core."""
    lists = [schema.read(text) or () for text in topology.get("cpus", {}).get("cores", ())]
    return frozenset(number for numbers in lists for number in numbers[1:])


def _row(device: dict[str, Any], partition: str, left_out: frozenset[int], today: date) -> NearestCores:
    numa = device.get("numa")
    return NearestCores(
        source=f"the inside of a node of partition {partition}, by a probe",
        seen=today,
        device=int(device["number"]),
        numa=numa if isinstance(numa, int) and numa >= 0 else None,
        cores=tuple(core for core in sorted(device.get("cores") or ()) if core not in left_out),
        pci_bus=str(device.get("pci") or ""),
        nic=str(device.get("nic") or ""),
    )
