"""`echelon machines`: what is known of the machines, and learning a new one from its Slurm."""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

from echelon.cli.talk import print_help, print_table
from echelon.errors import EchelonError, UsageError

if TYPE_CHECKING:
    from echelon.host import Host
    from echelon.machines.learn import Learned
    from echelon.machines.machine import Machine, NodeType

HELP = """usage: echelon machines [NAME] [--json]
       echelon machines learn [options]

What is known of the machines, with its sources: partitions and their limits, nodes, settings, containers.
Your own files in ~/.config/echelon/machines and those that ECHELON_MACHINES names are laid over ours.

  NAME             show one machine; "local" is the one that this is
  learn            describe the machine that this is from what its Slurm says, in a file of your own
  --json           print the same facts as JSON

options of learn:
  --name NAME      the machine's name; without it Slurm's cluster name
  --out FILE       where to write; - is standard output; without it ~/.config/echelon/machines/NAME.toml
  --force          write over a file that is there
  --probe          run one short step on a node, to see which cores are near to which device
  --partition P    the partition for the probe; without it the first with devices
  --account A      the account for the probe

example:
  echelon machines lumi
"""
_FLAGS = {"--json": "json", "--force": "force", "--probe": "probe", "-h": "help", "--help": "help"}
_VALUES = {"--name": "name", "--out": "out", "--partition": "partition", "--account": "account"}
_OF_LEARN = ("force", "probe", "name", "out", "partition", "account")


def main(arguments: list[str]) -> int:
    """Show the machines, or one, or learn one."""
    names, values = _scan(arguments)
    if "help" in values:
        print_help(HELP)
        return 0
    if len(names) > 1:
        raise UsageError(
            f"echelon machines shows one machine at a time: {' '.join(names)}", hint=f"echelon machines {names[0]}"
        )
    if names == ["learn"]:
        return _learn(values)
    for key in _OF_LEARN:
        if key in values:
            raise UsageError(
                f"--{key} is an option of echelon machines learn", hint=f"echelon machines learn --{key} …"
            )
    return _show_one(names[0], values) if names else _show_all(values)


def _scan(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the words and the options of a command line."""
    names: list[str] = []
    values: dict[str, str] = {}
    rest = iter(arguments)
    for word in rest:
        option, equals, value = word.partition("=")
        if option in _VALUES:
            given = value if equals else next(rest, "")
            if not given:
                raise UsageError(f"{option} needs a value", hint=f"echelon machines learn {option} …")
            values[_VALUES[option]] = given
        elif word in _FLAGS:
            values[_FLAGS[word]] = "yes"
        elif word.startswith("-"):
            _refuse_option(word)
        else:
            names.append(word)
    return names, values


def _refuse_option(word: str) -> NoReturn:
    known = [*_FLAGS, *_VALUES]
    near = difflib.get_close_matches(word.partition("=")[0], known, n=1, cutoff=0.4)
    raise UsageError(
        f"echelon machines has no option {word}; there are {', '.join(known)}",
        hint=f"did you mean {near[0]}?" if near else "echelon machines --help",
    )


def _show_all(values: dict[str, str]) -> int:
    from echelon.machines import load

    machines = load.load_all(os.environ).values()
    if "json" in values:
        from echelon.machines.write import as_plain

        print(json.dumps({"format": 1, "machines": [as_plain(machine) for machine in machines]}, indent=1))
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

    print(json.dumps({"format": 1, "machine": as_plain(machine)}, indent=1))


def _learn(values: dict[str, str]) -> int:
    from echelon.host import Host

    out, learned = learn_here(Host(), values)
    if "json" in values and out != "-":
        _print_json(replace(learned.machine, path=os.path.abspath(out)))
    elif out != "-":
        print(out)
    return 0


def learn_here(host: Host, values: Mapping[str, str] = MappingProxyType({})) -> tuple[str, Learned]:
    """Describe this cluster in a file, as the options of `learn` say, and tell of it; return the file's name."""
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
    text = _text(learned, is_overlay=below is not None)
    _write(out, text)
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
    """Call kinds of nodes as the file below does, where Slurm calls the device the same."""
    names = {kind.gres: kind.name for kind in below.node_types if kind.gres}
    ours = {kind.name: names.get(kind.gres, kind.name) for kind in learned.machine.node_types}
    if len(set(ours.values())) < len(ours):
        return learned
    kinds = tuple(replace(kind, name=ours[kind.name]) for kind in learned.machine.node_types)
    partitions = tuple(replace(row, node_type=ours[row.node_type]) for row in learned.machine.partitions)
    return replace(learned, machine=replace(learned.machine, node_types=kinds, partitions=partitions))


def _probed(host: Host, learned: Learned, values: Mapping[str, str], folder: str) -> Learned:
    """Add the nearest cores of each device to the kind of node of one partition."""
    from datetime import datetime, timezone

    from echelon.launch import package
    from echelon.machines.learn import Learned
    from echelon.machines.probe import probe

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
    try:
        os.makedirs(os.path.dirname(os.path.abspath(out)), exist_ok=True)
        beside = f"{out}.{os.getpid()}"
        with open(beside, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(beside, out)
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
