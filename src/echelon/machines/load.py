"""Load machines by name: our files, a site's, and the user's own over one another; or describe this computer."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any, NoReturn

from echelon.environment import devices, threads
from echelon.errors import UsageError
from echelon.hardware import vendors
from echelon.machines import files, schema
from echelon.machines.files import MachineFile
from echelon.machines.machine import Machine, NodeType, SourcedFact
from echelon.machines.schema import Where

Values = dict[str, Any]


def load_all(environ: Mapping[str, str]) -> dict[str, Machine]:
    return {name: _machine(values) for name, values in sorted(_collect(files.layers(environ)).items())}


def load_shipped() -> dict[str, Machine]:
    """Return the machines without the user's own files: ours and the site's."""
    return {name: _machine(values) for name, values in sorted(_collect(files.layers({})[:2]).items())}


def find(name: str, environ: Mapping[str, str]) -> Machine:
    """Return one machine; raise UsageError with the nearest names for an unknown one."""
    if name == LOCAL:
        return local()
    machine = load_named(name, environ)
    if machine is None:
        refuse_unknown(name, names(environ))
    return machine


def names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of known machines, without parsing files."""
    known = {file.name for layer in files.layers(environ) for file in layer if file.name}
    return tuple(sorted({*known, LOCAL}))


def load_named(name: str, environ: Mapping[str, str]) -> Machine | None:
    """Return the machine of that name without parsing other machines' files; None if there is none."""
    # a file whose name needs parsing may be about any machine
    wanted = [[file for file in layer if file.name in ("", name)] for layer in files.layers(environ)]
    by_name = _collect(wanted)
    return _machine(by_name[name]) if name in by_name else None


def refuse_unknown(name: str, known: Iterable[str]) -> NoReturn:
    """Raise UsageError for an unknown machine."""
    names = sorted({*known, LOCAL} - {""})
    near = difflib.get_close_matches(name.lower(), names, n=2, cutoff=0.5)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    raise UsageError(
        f"echelon knows no machine {name!r}; {meant}the known machines are {', '.join(names)}",
        hint=f"echelon machines {near[0]}" if near else "on a login node of that machine: echelon machines learn",
    )


def read_file(file: MachineFile) -> Machine:
    """Read a file that is complete by itself."""
    return _machine(_checked(file)[0])


def _collect(layers: list[list[MachineFile]]) -> dict[str, Values]:
    """Return the checked values of each machine; later layers override earlier ones."""
    by_name: dict[str, Values] = {}
    for layer in layers:
        whole: dict[str, str] = {}
        for file in layer:
            values, is_overlay = _checked(file)
            name = values["name"]
            if is_overlay:
                if name not in by_name:
                    raise UsageError(
                        f"{file.path}: merge = true, but there is no machine {name!r} to change",
                        hint="remove the line merge = true if the file describes the whole machine",
                    )
                by_name[name] = overlay(by_name[name], values)
                continue
            if name in whole:
                raise UsageError(
                    f"two machines have the name {name!r}: {whole[name]} and {file.path}",
                    hint=f"merge = true   at the top of {file.path}, or choose another name",
                )
            whole[name] = file.path
            by_name[name] = {**values, "path": file.path}
    return by_name


def _checked(file: MachineFile) -> tuple[Values, bool]:
    tables = file.tables()
    where = Where(path=file.path, text=file.text)
    is_overlay = tables.pop("merge", False)
    if not isinstance(is_overlay, bool):
        raise UsageError(f"{where.say('merge')}: merge must be true or false", hint="merge = true")
    values = schema.check(Machine, tables, where)
    if not values.get("name"):
        schema.refuse_missing("name", where)
    if values["name"] == LOCAL:
        raise UsageError(f"{where.say('name')}: {LOCAL} always means the machine that you are on", hint='name = "mine"')
    return values, is_overlay


def _machine(values: Values) -> Machine:
    for table in ("partitions", "node_types", "containers"):
        _refuse_duplicates(values.get(table, []), "name")
    for kind in values.get("node_types", []):
        _refuse_duplicates(kind.get("nearest", []), "device")
    machine = schema.build(Machine, values)
    _check_references(machine, values)
    return machine


def _refuse_duplicates(rows: list[Values], key: str) -> None:
    counts = Counter(row.get(key) for row in rows)
    for row in rows:
        if counts[row.get(key)] > 1:
            last = [other for other in rows if other.get(key) == row.get(key)][-1]
            raise UsageError(
                f"{last[schema.WHERE].say(key)}: there are {counts[row.get(key)]} of this {key}",
                hint="remove one, or give it another name",
            )


def _check_references(machine: Machine, values: Values) -> None:
    kinds = [kind.name for kind in machine.node_types]
    for table in ("partitions", "references"):
        for row in values.get(table, []):
            if row["node_type"] not in kinds:
                _refuse_name(row[schema.WHERE], "node_type", row["node_type"], kinds)
    names = [partition.name for partition in machine.partitions]
    for table, field, known in (("billing", "partitions", names), ("settings", "node_types", kinds)):
        for row in values.get(table, []):
            for name in row.get(field, ()):
                if name not in known:
                    _refuse_name(row[schema.WHERE], field, name, known)


def _refuse_name(where: Where, key: str, name: str, known: list[str]) -> None:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    table = "partition" if key == "partitions" else "node_type"
    raise UsageError(
        f'{where.say(key)}: {key} names "{name}", and no [[{table}]] of this machine is called so; '
        f"there are {', '.join(known) or 'none'}",
        hint=_line(key, near[0]) if near else f"[[{table}]]",
    )


def _line(key: str, name: str) -> str:
    return f'{key} = ["{name}"]' if key.endswith("s") else f'{key} = "{name}"'


# Two rows of a table are about the same thing if these fields are equal.
_IDENTITY = {
    "partitions": ("name",), "node_types": ("name",), "settings": ("name",), "containers": ("name",),
    "modules": ("framework",), "networks": ("kind",), "billing": ("partitions",), "quirks": ("about", "text"),
    "references": ("node_type", "num_nodes", "ranks_per_node", "backend"), "nearest": ("device",),
    "time_limits": ("max_nodes",),
}  # fmt: skip


def overlay(below: Values, above: Values) -> Values:
    """Merge checked values row by row; those of `above` win."""
    merged = dict(below)
    for field, value in above.items():
        if field in _IDENTITY:
            merged[field] = _rows(field, below.get(field, []), value)
        elif field != schema.WHERE:
            merged[field] = value
    return merged


def is_same(field: str, row: SourcedFact, other: SourcedFact) -> bool:
    return all(getattr(row, name) == getattr(other, name) for name in _IDENTITY[field])


def _rows(field: str, below: list[Values], above: list[Values]) -> list[Values]:
    rows = list(below)
    for row in above:
        if "source" not in row or "seen" not in row:
            schema.refuse_missing("source" if "source" not in row else "seen", row[schema.WHERE])
        same = [index for index, old in enumerate(rows) if _identity(field, old) == _identity(field, row)]
        if len(same) == 1:
            rows[same[0]] = _laid(rows[same[0]], row)
        else:  # a new row; or one that replaces several rows with different conditions
            rows = [old for index, old in enumerate(rows) if index not in same] + [row]
    return rows


def _identity(field: str, row: Values) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in _IDENTITY[field])


def _laid(old: Values, row: Values) -> Values:
    """Return a merged row, whose source says where its facts come from."""
    merged = overlay(old, row)
    where = row[schema.WHERE]
    changed = [schema.toml_key(name) for name in row if name not in ("source", "seen", "name", schema.WHERE)]
    if old["source"] != row["source"]:
        merged["source"] = f"{row['source']} ({', '.join(changed) or 'seen again'}); otherwise {old['source']}"
    return {**merged, schema.WHERE: where}


LOCAL = "local"  # the name of this machine, which has no file


def local(environ: Mapping[str, str] | None = None) -> Machine:
    """Return this machine, of one node, as this process sees it."""
    hostname, today, cores = os.uname().nodename, date.today(), len(threads.cores())
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    num_devices = len(devices.visible(os.environ if environ is None else environ))
    source = f"{hostname} itself, as this process sees it"
    node = NodeType(
        source=source,
        seen=today,
        note="Cores are the hardware threads that this process may use.",
        name=hostname,
        chip="",
        vendor=(vendors.driven().name or "unknown") if num_devices else "none",
        num_nodes=1,
        num_devices=num_devices,
        architecture=os.uname().machine,
        num_cores=cores,
        memory_bytes=memory_bytes,
        cores_per_device=cores // num_devices if num_devices else None,
        memory_bytes_per_device=memory_bytes // num_devices if num_devices else None,
        scratch="/tmp",
    )
    return Machine(source=source, seen=today, name=LOCAL, title=hostname, node_types=(node,))
