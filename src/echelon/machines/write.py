"""Write a machine as a TOML file that reads back equal."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from echelon import units
from echelon.errors import UsageError
from echelon.machines import files, load, schema
from echelon.machines.machine import Machine, Reference, SourcedFact
from echelon.topology.cpus import cpu_list


def as_toml(machine: Machine, *, comments: Sequence[str] = ()) -> str:
    """Return the text of a file that is complete by itself."""
    head = "".join(f"# {line}\n" for line in comments)
    return head + "\n".join(_tables(machine, ""))


def as_overlay(machine: Machine, *, comments: Sequence[str] = ()) -> str:
    """Return the text of a file that overlays the machine of the same name."""
    head = "".join(f"# {line}\n" for line in comments)
    whole = _tables(machine, "")
    kept = [line for line in whole[0].splitlines() if not line.startswith(("title =", "source =", "date =", "note ="))]
    return head + "\n".join(["\n".join(["merge = true", *kept]) + "\n", *whole[1:]])


def as_plain(row: SourcedFact) -> dict[str, Any]:
    """Return a row for JSON, with the keys of the file; unknown values are null."""
    plain: dict[str, Any] = {}
    for name, (key, kind) in schema.fields(type(row)).items():
        value = getattr(row, name)
        if schema.row_class(kind):
            plain[key] = [as_plain(inner) for inner in value]
        else:
            plain[key] = value.isoformat() if isinstance(value, date) else value
    if isinstance(row, Machine):
        plain["path"] = row.path
    return plain


def _tables(row: SourcedFact, header: str) -> list[str]:
    """Return a row's own lines, then those of its nested rows."""
    lines = [f"[[{header}]]"] if header else []
    inner: list[str] = []
    defaults = {field.name: field.default for field in dataclasses.fields(row)}
    for name, (key, kind) in schema.fields(type(row)).items():
        value = getattr(row, name)
        if schema.row_class(kind):
            for inner_row in value:
                inner += _tables(inner_row, f"{header}.{key}" if header else key)
        elif value is not None and value != defaults[name]:
            lines.append(f"{key} = {_value(kind, value)}{_gloss(key, value)}")
    return ["\n".join(lines) + "\n", *inner]


def _value(kind: Any, value: Any) -> str:
    if kind == tuple[int, ...]:
        return _text(cpu_list(value))
    if isinstance(value, tuple):
        return "[" + ", ".join(_text(word) for word in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    return value.isoformat() if isinstance(value, date) else str(value)


def _text(value: str) -> str:
    """Format a TOML string: JSON's escapes are valid in TOML, which also escapes DEL."""
    sound = value.encode("utf-8", "replace").decode()
    return json.dumps(sound, ensure_ascii=False).replace("\x7f", "\\u007f")


def _gloss(key: str, value: Any) -> str:
    return f"  # {units.size(value)}" if "_bytes" in key and isinstance(value, int) and value else ""


def keep(machine: Machine, row: Reference, environ: Mapping[str, str]) -> str:
    """Write the row beside earlier ones, in place of an equal one; return the file's path."""
    # an overlay of a published row has both sources
    before = [replace(each, source=row.source) for each in machine.references if each.source.startswith(row.source)]
    rows = [each for each in before if not load.is_same("references", each, row)] + [row]
    own = Machine(
        name=machine.name, title=machine.title, source=machine.source, seen=machine.seen, references=tuple(rows)
    )
    # in file names, an underscore sorts after the dot of NAME.toml, which this file overlays
    path = os.path.join(files.user_folder(environ), f"{machine.name}_measured.toml")
    text = as_overlay(own, comments=("Written by echelon check --collectives --keep.",))
    try:
        files.write(path, text)
    except OSError as error:
        raise UsageError(
            f"echelon cannot write {path}: {error.strerror}", hint="XDG_CONFIG_HOME=FOLDER echelon check …"
        ) from None
    return path
