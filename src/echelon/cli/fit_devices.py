"""The devices that `echelon fit` judges: those of a machine, a named one, or all that are known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from echelon.cli.options import Option
from echelon.errors import UsageError
from echelon.estimate.devices import Device
from echelon.host import Host
from echelon.machines.machine import Machine, NodeType
from echelon.units import GIB, size, size_bytes

OPTIONS: tuple[Option, ...] = (
    Option(names=("--machine",), value="NAME", help="judge the devices of this machine (default: this machine's)"),
    Option(names=("--node-type",), value="NAME", help="the kind of the machine's nodes, if it has several"),
    Option(names=("--device",), value="NAME",
           help="judge one device: v100, a100-40, mi250x; any name with --device-memory"),
    Option(names=("--device-memory",), value="SIZE",
           help="memory of one device, such as 80G, if echelon does not know it"),
)  # fmt: skip
USUAL_PER_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A device, and the node that holds it."""

    title: str
    """The device, and where it is: "MI250X (one of its two devices) of LUMI"."""
    device: Device
    per_node: int
    node_bytes: int
    """The memory of a node; 0: unknown."""


def targets(values: Mapping[str, str], host: Host) -> list[Target]:
    """Return the devices that the options name; raise UsageError for one that nobody knows."""
    if "device" in values or "device_memory" in values:
        return [_named(values, host)]
    machine = _machine(values, host)
    if machine is not None:
        kinds = [kind for kind in machine.node_types if kind.device_memory_bytes]
        return [_of(kind, machine.title) for kind in _chosen(kinds, values, machine)]
    return sorted(_known(host).values(), key=lambda target: (target.device.memory_bytes, target.device.chip))


def _machine(values: Mapping[str, str], host: Host) -> Machine | None:
    """Return the named machine; or this one, if its devices are known."""
    from echelon.machines import detect, load

    if "machine" in values:
        return load.find(values["machine"], host.environ)
    machine = detect.here(host)
    has_devices = machine is not None and any(kind.device_memory_bytes for kind in machine.node_types)
    return machine if has_devices else None


def _chosen(kinds: list[NodeType], values: Mapping[str, str], machine: Machine) -> list[NodeType]:
    names = [kind.name for kind in kinds]
    if not kinds:
        raise UsageError(
            f"the memory of the devices of {machine.title} is not published, so echelon cannot tell what fits",
            hint="--device-memory 80G   if a device has 80 GiB",
        )
    if "node_type" not in values:
        return [kind for kind in kinds if kind in machine.usual_node_types] or kinds
    if values["node_type"] not in names:
        raise UsageError(
            f"--node-type {values['node_type'] or repr('')}: {machine.title} has {', '.join(names)}",
            hint=f"--node-type {names[0]}",
        )
    return [kind for kind in kinds if kind.name == values["node_type"]]


def _of(kind: NodeType, where: str) -> Target:
    num_devices = kind.num_devices or USUAL_PER_NODE
    is_part = bool(kind.num_chips and num_devices > kind.num_chips)
    chip = f"{kind.chip} (one of its {num_devices // (kind.num_chips or 1)} devices)" if is_part else kind.chip
    return Target(
        title=f"{chip} of {where}" if where else chip,
        device=Device(chip=kind.chip, memory_bytes=kind.device_memory_bytes or 0),
        per_node=num_devices,
        node_bytes=kind.memory_bytes or 0,
    )


def _known(host: Host) -> dict[str, Target]:
    """Return each device of the machine files by its short name: a100-40."""
    from echelon.machines import load

    rows: dict[str, Target] = {}
    for machine in load.load_all(host.environ).values():
        for kind in machine.node_types:
            if kind.device_memory_bytes and kind.chip:
                rows.setdefault(_short(kind.chip, kind.device_memory_bytes), _of(kind, ""))
    return rows


def _short(chip: str, memory_bytes: int) -> str:
    return f"{re.sub(r'[^a-z0-9]+', '', chip.lower())}-{round(memory_bytes / GIB)}"


def _named(values: Mapping[str, str], host: Host) -> Target:
    name, known = values.get("device", ""), _known(host)
    plain = re.sub(r"[^a-z0-9-]+", "", name.lower())
    if "device_memory" in values:
        memory_bytes = size_bytes(values["device_memory"], option="--device-memory")
        like = next((target for short, target in known.items() if plain and short.startswith(plain)), None)
        return Target(
            title=f"{name or 'a device'} with {size(memory_bytes)}",
            device=Device(chip=like.device.chip if like else name, memory_bytes=memory_bytes),
            per_node=like.per_node if like else USUAL_PER_NODE,
            node_bytes=0,
        )
    matches = {short: target for short, target in known.items() if plain and plain in (short, short.rpartition("-")[0])}
    if len(matches) == 1:
        return next(iter(matches.values()))
    if matches:
        raise UsageError(f"--device {name}: there are {', '.join(sorted(matches))}", hint=f"--device {min(matches)}")
    raise UsageError(
        f"--device {name or repr('')}: echelon knows {', '.join(sorted(known))}",
        hint=f"--device {name or 'mine'} --device-memory 80G   if it has 80 GiB",
    )
