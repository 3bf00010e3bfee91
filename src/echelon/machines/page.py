"""Format a machine as a page for people; facts have the numbers of sources, which are listed at the end."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from echelon import units
from echelon.machines.machine import (
    Billing,
    Container,
    Grid,
    Machine,
    Network,
    NodeType,
    Partition,
    Quirk,
    Reference,
    Setting,
    SourcedFact,
)
from echelon.topology.cpus import cpu_list

WIDTH = 110


class _Sources:
    """The numbered sources of a page."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}

    def mark(self, row: SourcedFact) -> str:
        """Return the number of a row's source, as [3]."""
        return f"[{self._numbers.setdefault((row.source, row.seen.isoformat()), len(self._numbers) + 1)}]"

    def lines(self) -> list[str]:
        return [f"[{number}] {source}, {seen}" for (source, seen), number in self._numbers.items()]


def table(machines: Iterable[Machine]) -> str:
    rows = [("machine", "title", "of a node", "partitions", "")]
    for machine in machines:
        partitions = ", ".join(row.name for row in machine.partitions if row.retired_on is None)
        used = {row.node_type for row in machine.partitions}
        words = [
            f"{kind.num_chips or kind.num_devices or '?'} × {kind.chip or kind.gres}"
            + (f" = {kind.num_devices}" if _is_split(kind) else "")
            for kind in machine.node_types
            if kind.name in used and kind.vendor != "none" and "mig" not in kind.name
        ]
        rows.append((machine.name, machine.title, ", ".join(words), partitions, _retired(machine)))
    return "\n".join(units.aligned(rows)) + "\n"


def _is_split(kind: NodeType) -> bool:
    return bool(kind.num_chips and kind.num_devices and kind.num_devices != kind.num_chips)


def _retired(machine: Machine) -> str:
    if machine.retired_on is None:
        return ""
    return f"retired on {machine.retired_on.isoformat()}" + (f", see {machine.successor}" if machine.successor else "")


def page(machine: Machine) -> str:
    sources = _Sources()
    lines = [f"{machine.name}: {machine.title}" + (f", {machine.site}" if machine.site else "")]
    if machine.retired_on:
        lines.append(_retired(machine).capitalize())
    lines += _wrapped(f"{_asked(machine)} {sources.mark(machine)}", "")
    lines += _noted(machine, "")
    parts: tuple[tuple[str, Sequence[SourcedFact]], ...] = (
        ("partitions", machine.partitions),
        ("nodes", machine.node_types),
        ("billing", machine.billing),
        ("electricity", machine.grids),
        ("networks", machine.networks),
        ("collectives", machine.references),
        ("settings of every rank", machine.settings),
        ("containers", machine.containers),
        ("modules", machine.modules),
        ("to be known", machine.quirks),
    )
    for title, rows in parts:
        if rows:
            lines += ["", title, *(line for row in rows for line in _row(row, sources))]
    lines += ["", "sources", *(line for text in sources.lines() for line in _wrapped(text, "  "))]
    if machine.path:
        lines += ["", f"file: {machine.path}"]
    return "\n".join(lines) + "\n"


def _asked(machine: Machine) -> str:
    needs = [name for name in ("account", "qos") if getattr(machine, name) == "required"]
    words = [f"Cluster {', '.join(machine.clusters)}"] if machine.clusters else []
    words += [f"jobs need --{' and --'.join(needs)}"] if needs else []
    words += [f"devices by {machine.device_option}"] if machine.partitions else []
    text = "; ".join(words) or "one node, no partition"
    text = text[0].upper() + text[1:] + "."
    return text if machine.complete or not machine.partitions else f"{text} There may be more partitions than these."


def _row(row: SourcedFact, sources: _Sources) -> list[str]:
    head, *more = _words(row)
    lines = _wrapped(f"{head} {sources.mark(row)}", "  ")
    for text in more:
        lines += _wrapped(text, "    ")
    return lines + _noted(row, "    ")


def _noted(row: SourcedFact, indent: str) -> list[str]:
    return _wrapped(row.note, indent) if row.note else []


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent + "  " if indent else "",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _words(row: SourcedFact) -> list[str]:
    """Return a row's facts: the first line, then further lines."""
    if isinstance(row, Partition):
        return [f"{row.name}: {', '.join(_limits(row))}", *_conditions(row)]
    if isinstance(row, NodeType):
        return _node_words(row)
    if isinstance(row, Billing):
        return [f"{', '.join(row.partitions)}: {_bill(row)}"]
    if isinstance(row, Grid):
        return [f"{row.region}, mean of {row.year}: {row.grams_co2_per_kwh:g} g CO2/kWh"]
    if isinstance(row, Network):
        return [_network(row)]
    if isinstance(row, Reference):
        ranks = units.counted(row.ranks_per_node, "rank")
        nodes = f"{units.counted(row.num_nodes, 'node')} of {row.node_type}, {ranks} each"
        action = f"all-reduce of {units.size(row.num_bytes)} by {row.backend}"
        return [f"{nodes}: {action}, bus bandwidth {row.bus_bytes_per_second / 1e9:g} GB/s"]
    if isinstance(row, Setting):
        return [f"{row.name}={row.value}{_when(row)}", row.why]
    if isinstance(row, Container):
        start = f"{row.runtime} {row.command}" + (f" {row.gpu_option}" if row.gpu_option else "")
        lines = [f"{row.name}: {start}" + (f", for {row.images}" if row.images else ", for any image")]
        lines += ["; ".join(row.modules)] if row.modules else []
        lines += [f"binds {','.join(row.binds)}"] if row.binds else []
        return lines + ([f"first, inside: {row.start_line}"] if row.start_line else [])
    if isinstance(row, Quirk):
        period = [f"since {row.since}"] if row.since else []
        period += [f"until {row.until}"] if row.until else []
        return [f"{row.about}: {row.text}" + (f" ({', '.join(period)})" if period else "")]
    return [f"{getattr(row, 'framework', '')}: {'; '.join(getattr(row, 'lines', ()))}"]


def _limits(row: Partition) -> list[str]:
    words = ["whole nodes" if row.whole_nodes else "parts of nodes", f"of {row.node_type}"]
    words = [" ".join(words)]
    words += [f"--partition {row.partition_option or 'is not given'}"] if row.slurm_partition else []
    words += [f"--{name} {text}" for name, text in (("qos", row.qos), ("constraint", row.constraint)) if text]
    spans = (("node", row.min_nodes, row.max_nodes), ("device", row.min_devices, row.max_devices))
    words += [_span(what, low, high) for what, low, high in spans if low or high]
    for limit in row.time_limits:
        words.append(f"up to {units.counted(limit.max_nodes, 'node')} {units.slurm_time(limit.max_minutes)}")
    if row.max_minutes is not None:
        words.append(units.slurm_time(row.max_minutes))
    for noun, where, most in (
        ("device", " a node", row.max_devices_per_node),
        ("core", "", row.max_cores),
        ("core", " a node", row.max_cores_per_node),
    ):
        if most is not None:
            words.append(f"at most {units.counted(most, noun)}{where}")
    if row.max_memory_bytes_per_node is not None:
        words.append(f"at most {units.size(row.max_memory_bytes_per_node)} a node")
    if row.max_jobs is not None:
        words.append(f"{units.counted(row.max_jobs, 'job')} of a user")
    if row.max_running_jobs is not None:
        words.append(f"{row.max_running_jobs} running")
    return words


def _span(noun: str, low: int | None, high: int | None) -> str:
    if low and high:
        return f"{low} to {units.counted(high, noun)}"
    return f"at least {units.counted(low, noun)}" if low else f"at most {units.counted(high or 0, noun)}"


def _conditions(row: Partition) -> list[str]:
    words = [f"for {row.purpose}"] if row.purpose in ("test", "interactive") else []
    words += ["on request"] if row.purpose == "request" else []
    words += ["not confirmed"] if row.purpose == "unconfirmed" else []
    words += [f"retired on {row.retired_on.isoformat()}"] if row.retired_on else []
    words += [f"condition: {row.condition}"] if row.condition else []
    return ["; ".join(words)] if words else []


def _node_words(kind: NodeType) -> list[str]:
    count = units.counted(kind.num_nodes, "node") if kind.num_nodes else "nodes"
    chips = f", {kind.num_chips} × {kind.chip}" if kind.num_chips else f", {kind.chip}" if kind.chip else ""
    devices = ""
    if kind.num_devices:
        memory = f" of {units.size(kind.device_memory_bytes)}" if kind.device_memory_bytes else ""
        devices = f"{' =' if kind.num_chips else ','} {units.counted(kind.num_devices, 'device')}{memory}"
    lines = [f"{kind.name}: {count}{chips}{devices}" + (f", {kind.architecture}" if kind.architecture else "")]
    have = [units.counted(kind.num_cores, "core") if kind.num_cores else ""]
    have += [f"reserved {cpu_list(kind.reserved_cores)}" if kind.reserved_cores else ""]
    have += [units.size(kind.memory_bytes) + " for jobs" if kind.memory_bytes else ""]
    have += [f"gres {kind.gres}" if kind.gres else "", f"own disk: {kind.local_disk}" if kind.local_disk else ""]
    have += [f"scratch {kind.scratch}" if kind.scratch else ""]
    lines.append("; ".join(word for word in have if word))
    share = [units.counted(kind.cores_per_device, "core") if kind.cores_per_device else ""]
    share += [units.size(kind.memory_bytes_per_device) if kind.memory_bytes_per_device else ""]
    if any(share):
        follows = ", which Slurm gives by itself" if kind.memory_follows_devices else ""
        lines.append(f"a device's share: {' and '.join(word for word in share if word)}{follows}")
    for near in kind.nearest:
        numa = f", NUMA domain {near.numa}" if near.numa is not None else ""
        bus = f", PCI bus {near.pci_bus}" if near.pci_bus else ""
        lines.append(f"device {near.device}: cores {cpu_list(near.cores)}{numa}{bus}" + (near.nic and f", {near.nic}"))
    return [line for line in lines if line]


def _bill(row: Billing) -> str:
    price = f"; {row.price_per_unit:g} {row.currency} for each" if row.price_per_unit is not None else ""
    if row.per_node_hour is not None:
        return f"{row.per_node_hour:g} {row.unit} for each hour of a node{price}"
    shares = [f"cores/{row.cores_per_unit}" if row.cores_per_unit else ""]
    shares += [f"memory/{units.size(row.memory_bytes_per_unit)}" if row.memory_bytes_per_unit else ""]
    inside = ", ".join([*(share for share in shares if share), "devices"])
    return f"{row.factor:g} {row.unit} × hours × the greatest of {inside}, each rounded up{price}"


def _network(row: Network) -> str:
    words = [row.kind]
    if row.interfaces:
        words.append(", ".join(row.interfaces))
    if row.link_bits_per_second:
        links = f"{row.links_per_node} × " if row.links_per_node else ""
        words.append(f"{links}{row.link_bits_per_second // 10**9} Gb/s")
    return "; ".join([*words, *([f"plugin {row.plugin}"] if row.plugin else [])])


def _when(row: Setting) -> str:
    words = [f"from {units.counted(row.min_nodes, 'node')} on"] if row.min_nodes else []
    words += [f"up to {units.counted(row.max_nodes, 'node')}"] if row.max_nodes else []
    words += [f"ROCm below {row.below_rocm}"] if row.below_rocm else []
    words += [f"on {', '.join(row.node_types)}"] if row.node_types else []
    return f"  ({'; '.join(words)})" if words else ""
