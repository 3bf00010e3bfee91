"""`echelon machines`: list the known machines, and learn a new machine from its Slurm."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from types import MappingProxyType
from typing import TYPE_CHECKING

from echelon.cli.help import Help
from echelon.cli.options import Option
from echelon.cli.resources import machine_names
from echelon.cli.talk import print_json, print_table
from echelon.errors import EchelonError, UsageError
from echelon.host import Host
from echelon.machines.machine import Machine, NodeType

if TYPE_CHECKING:
    from echelon.machines.learn import Learned

OF_LEARN: tuple[Option, ...] = (
    Option(names=("--name",), value="NAME", help="the machine's name; without it Slurm's cluster name"),
    Option(names=("--out",), value="FILE", takes="file",
           help="where to write; - is standard output; without it ~/.config/echelon/machines/NAME.toml"),
    Option(names=("--force",), help="write over a file that is there"),
    Option(names=("--probe",), help="run one short step on a node, to see which cores are near to which device"),
    Option(names=("--partition",), value="P",
           help="the partition for the probe; without it the first that has devices"),
    Option(names=("--account",), value="A", help="the account for the probe"),
)  # fmt: skip
SHOWING: tuple[Option, ...] = (
    Option(names=("--json",), help="print the same facts as JSON"),
    Option(names=("-h", "--help"), help="show this"),
)
OPTIONS = (*SHOWING, *OF_LEARN)
HELP = Help(
    command="machines",
    usage=("[NAME] [--json]", "learn [options]"),
    about="Show the facts of known machines, with their sources: partitions, limits, nodes, settings, containers.\n"
    "Files in ~/.config/echelon/machines, and files in ECHELON_MACHINES, change or extend these facts.",
    operands=(
        Option(names=("NAME",), choices=machine_names, help='show one machine; "local" is this machine'),
        Option(names=("learn",), choices=("learn",), help="ask Slurm, and describe this machine in your own file"),
    ),
    groups=(("options", SHOWING), ("options of learn", OF_LEARN)),
    example="echelon machines lumi",
)  # fmt: skip


def main(arguments: list[str]) -> int:
    command = "machines learn" if "learn" in arguments else "machines"
    scanned = HELP.scan_all(arguments, command=command)
    names, values = list(scanned.rest), scanned.last
    for option in OF_LEARN:
        if option.value and values.get(option.key) == "":
            name = option.names[-1]
            raise UsageError(f"{name} '': it needs a value", hint=f"echelon machines learn {name} {option.value}")
    if len(names) > 1:
        raise UsageError(
            f"echelon machines shows one machine at a time: {' '.join(names)}", hint=f"echelon machines {names[0]}"
        )
    if names == ["learn"]:
        out, learned = learn_here(Host(), values)
        if "json" in values and out != "-":
            _print_json(replace(learned.machine, path=os.path.abspath(out)))
        elif out != "-":
            print(out)
        return 0
    for option in OF_LEARN:
        if option.key in values:
            name = option.names[-1]
            raise UsageError(f"{name} is an option of echelon machines learn", hint=f"echelon machines learn {name} …")
    return _show_one(names[0], values) if names else _show_all(values)


def _show_all(values: dict[str, str]) -> int:
    from echelon.machines import load

    machines = load.load_all(os.environ).values()
    if "json" in values:
        from echelon.machines.write import as_plain

        print_json(machines=[as_plain(machine) for machine in machines])
        return 0
    from echelon.machines.page import table

    print_table(table(machines))
    return 0


def _show_one(name: str, values: dict[str, str]) -> int:
    from echelon.machines import load

    machine = load.find(name, os.environ)
    if "json" in values:
        _print_json(machine)
        return 0
    from echelon.machines.page import page

    print_table(page(machine))
    return 0


def _print_json(machine: Machine) -> None:
    from echelon.machines.write import as_plain

    print_json(machine=as_plain(machine))


def learn_here(host: Host, values: Mapping[str, str] = MappingProxyType({})) -> tuple[str, Learned]:
    """Write a file that describes this cluster, as the options of `learn` say; return the file's name."""
    from echelon.machines import files, load
    from echelon.machines.learn import learn

    learned = learn(host, name=values.get("name", ""))
    name = _checked_name(learned.machine.name)
    below = load.load_shipped().get(name)
    out = values.get("out") or os.path.join(files.user_folder(os.environ), f"{name}.toml")
    if out != "-" and os.path.exists(out) and "force" not in values:
        raise UsageError(f"{out} already exists", hint="echelon machines learn --force   or --out another.toml")
    if below is not None:
        learned = _with_known_names(learned, below)
    if "probe" in values:
        learned = _probed(host, learned, values, os.path.dirname(os.path.abspath(out)) if out != "-" else os.getcwd())
    _write(out, _text(learned, is_overlay=below is not None))
    _tell(learned, out, below)
    return out, learned


def _checked_name(name: str) -> str:
    if not name:
        raise UsageError("Slurm does not tell the name of this cluster", hint="echelon machines learn --name mine")
    if name in ("local", "learn") or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise UsageError(
            f"--name {name!r}: give a name of letters, digits, - _ and .; local and learn are reserved",
            hint="echelon machines learn --name mine",
        )
    return name


def _with_known_names(learned: Learned, below: Machine) -> Learned:
    """Rename the learned node types to the names in the known file, where the gres is equal."""
    names = {kind.gres: kind.name for kind in below.node_types if kind.gres}
    ours = {kind.name: names.get(kind.gres, kind.name) for kind in learned.machine.node_types}
    if len(set(ours.values())) < len(ours):
        return learned
    kinds = tuple(replace(kind, name=ours[kind.name]) for kind in learned.machine.node_types)
    partitions = tuple(replace(row, node_type=ours[row.node_type]) for row in learned.machine.partitions)
    return replace(learned, machine=replace(learned.machine, node_types=kinds, partitions=partitions))


def _probed(host: Host, learned: Learned, values: Mapping[str, str], folder: str) -> Learned:
    """Add the nearest cores of each device to the kind of node of one partition."""
    from echelon.launch import package
    from echelon.machines.learn import Learned, probe

    machine = learned.machine
    name, kind = _probed_kind(machine, values.get("partition", ""))
    archive = os.path.join(folder, f".probe-{os.getpid()}.pyz")
    options = [f"--account={values['account']}"] if "account" in values else []
    os.makedirs(folder, exist_ok=True)
    package.write(archive)
    try:
        today = datetime.fromtimestamp(host.now(), timezone.utc).date()
        seen = probe(host, name, kind, archive=archive, options=options, today=today)
    finally:
        os.unlink(archive)
    better = replace(
        kind,
        nearest=seen.nearest,
        vendor=seen.vendor or kind.vendor,
        num_chips=seen.num_chips,
        device_memory_bytes=seen.device_memory_bytes,
    )
    kinds = tuple(better if one.name == kind.name else one for one in machine.node_types)
    remarks = learned.remarks if seen.nearest else (*learned.remarks, f"the probe found no devices on a node of {name}")
    return Learned(machine=replace(machine, node_types=kinds), remarks=remarks)


def _probed_kind(machine: Machine, wanted: str) -> tuple[str, NodeType]:
    with_devices = [row for row in machine.partitions if machine.node_type(row).num_devices]
    names = [row.name for row in machine.partitions]
    if wanted and wanted not in names:
        near = difflib.get_close_matches(wanted, names, n=1, cutoff=0.0)
        raise UsageError(
            f"--partition {wanted}: this Slurm has {', '.join(names) or 'none'}",
            hint=f"--partition {near[0]}" if near else "sinfo --summarize",
        )
    chosen = next((row for row in (machine.partitions if wanted else with_devices) if wanted in ("", row.name)), None)
    if chosen is None:
        raise EchelonError("no partition has devices, so there is nothing to probe", hint="echelon machines learn")
    return chosen.name, machine.node_type(chosen)


def _text(learned: Learned, *, is_overlay: bool) -> str:
    from echelon.machines.write import as_overlay, as_toml

    comments = [
        f"Written by echelon machines learn on {learned.machine.seen.isoformat()}.",
        "Slurm knows no settings, containers or prices: add published facts, each row with its source.",
        *learned.remarks,
    ]
    return (as_overlay if is_overlay else as_toml)(learned.machine, comments=comments)


def _write(out: str, text: str) -> None:
    if out == "-":
        print(text, end="")
        return
    from echelon.machines import files

    try:
        files.write(out, text)
    except OSError as error:
        raise UsageError(f"echelon cannot write {out}: {error.strerror}", hint="--out FILE   or --out -") from None


def _tell(learned: Learned, out: str, below: Machine | None) -> None:
    machine = learned.machine
    lines = [f"Slurm's cluster name is {', '.join(machine.clusters) or 'not set'}: machine {machine.name}"]
    lines.append(
        f"partitions {', '.join(row.name for row in machine.partitions) or 'none'}; "
        f"nodes {', '.join(row.name for row in machine.node_types) or 'none'}; by {machine.source}"
    )
    lines += learned.remarks
    if below is not None:
        lines.append(f"laid over the known facts of {machine.name}: settings, containers and the rest stay")
    if not any(kind.nearest for kind in machine.node_types) and not any("probe" in text for text in learned.remarks):
        lines.append(
            "to learn which cores are near to which device, run a step on a node: echelon machines learn --probe "
            "--force"
        )
    for line in lines:
        print(f"echelon: {line}", file=sys.stderr)
    if out != "-":
        print(f"echelon: read the file, then: echelon machines {machine.name}", file=sys.stderr)
