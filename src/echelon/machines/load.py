"""Load machines by name: our files, then a site's, then the user's own."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from echelon.errors import UsageError
from echelon.machines import files, merge, schema
from echelon.machines.files import File
from echelon.machines.local import LOCAL, local
from echelon.machines.machine import Machine
from echelon.machines.where import Where

Values = dict[str, Any]


def load_all(environ: Mapping[str, str]) -> dict[str, Machine]:
    """Return every described machine by name."""
    by_name = _collect(files.layers(environ))
    return {name: _machine(values) for name, values in sorted(by_name.items())}


def load_shipped() -> dict[str, Machine]:
    """Return the machines without the user's own files: ours and the site's."""
    by_name = _collect(files.layers({})[:2])
    return {name: _machine(values) for name, values in sorted(by_name.items())}


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


def read_file(file: File) -> Machine:
    """Read a file that is complete by itself."""
    return _machine(_checked(file)[0])


def _collect(layers: list[list[File]]) -> dict[str, Values]:
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
                by_name[name] = merge.overlay(by_name[name], values)
                continue
            if name in whole:
                raise UsageError(
                    f"two machines have the name {name!r}: {whole[name]} and {file.path}",
                    hint=f"merge = true   at the top of {file.path}, or choose another name",
                )
            whole[name] = file.path
            by_name[name] = {**values, "path": file.path}
    return by_name


def _checked(file: File) -> tuple[Values, bool]:
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
