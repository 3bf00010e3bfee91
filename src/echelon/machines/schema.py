"""Convert the tables of a machine file into rows, guided by the annotations of the dataclasses."""

from __future__ import annotations

import dataclasses
import difflib
from datetime import date, datetime
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

from echelon.errors import UsageError
from echelon.machines import cores
from echelon.machines.machine import (
    Billing,
    Container,
    Machine,
    Network,
    NodeType,
    Partition,
    Reference,
    Row,
    Setting,
)
from echelon.machines.repair import other_unit
from echelon.machines.where import Where

WHERE = "-where"
"""The key under which a checked table keeps its place; it differs from all TOML keys of ours."""

TABLES = {
    "partitions": "partition", "node_types": "node_type", "billing": "billing", "settings": "setting",
    "containers": "container", "modules": "modules", "networks": "network", "references": "reference",
    "quirks": "quirk", "nearest": "nearest", "time_limits": "time_limit",
}  # fmt: skip
"""The TOML name of one row of a field that holds rows."""

CHOICES: dict[tuple[type, str], tuple[str, ...]] = {
    (Machine, "account"): ("required", "optional"),
    (Machine, "qos"): ("required", "optional"),
    (Machine, "device_option"): ("--gpus-per-node", "--gres"),
    (NodeType, "vendor"): ("amd", "nvidia", "none", "unknown"),
    (Partition, "purpose"): ("batch", "test", "interactive", "request", "unconfirmed"),
    (Setting, "kind"): ("value", "folder"),
    (Container, "command"): ("exec", "run"),
    (Network, "kind"): ("slingshot", "infiniband", "ethernet"),
    (Reference, "backend"): ("nccl", "gloo"),
}
_MAY_BE_NEGATIVE = {(Partition, "preference")}
_EXAMPLES = {
    "source": 'source = "the page, file or ticket that says so"', "seen": f"date = {date(2026, 11, 21)}",
    "name": 'name = "…"', "title": 'title = "…"', "cores": 'cores = "1-7"', "device": "device = 0",
    "node_type": 'node_type = "the name of a [[node_type]]"',
}  # fmt: skip

AnyRow = TypeVar("AnyRow", bound=Row)


_LAST = ("note", "source", "seen")  # the source follows the facts
_FIELDS: dict[type, dict[str, tuple[str, Any]]] = {}


def fields(cls: type[Row]) -> dict[str, tuple[str, Any]]:
    """Return the TOML name and the type of each field of a row."""
    if cls not in _FIELDS:
        _FIELDS[cls] = _read_fields(cls)
    return _FIELDS[cls]


def _read_fields(cls: type[Row]) -> dict[str, tuple[str, Any]]:
    hints = get_type_hints(cls)
    names = [field.name for field in dataclasses.fields(cls) if field.name not in ("path", *_LAST)]
    names += _LAST
    return {
        name: (TABLES[name] if row_class(hints[name]) else "date" if name == "seen" else name, hints[name])
        for name in names
    }


def keys(cls: type[Row]) -> dict[str, tuple[str, Any]]:
    """Return the field and the type of each key of a table."""
    return {key: (name, kind) for name, (key, kind) in fields(cls).items()}


def toml_key(field: str) -> str:
    """Return the TOML name of a field that holds no rows."""
    return "date" if field == "seen" else field


def row_class(kind: Any) -> type[Row] | None:
    """Return the class of the rows in a field; None for other fields."""
    first = get_args(kind)[0] if get_args(kind) else None
    return first if isinstance(first, type) and issubclass(first, Row) else None


def check(cls: type[Row], table: dict[str, Any], where: Where) -> dict[str, Any]:
    """Return a table's values by field, with nested rows likewise; raise UsageError for invalid values.

    Missing keys are accepted here: an overlay file may lack them.
    """
    known = keys(cls)
    values: dict[str, Any] = {WHERE: where}
    for key, value in table.items():
        if key not in known:
            _refuse_key(key, value, list(known), where)
        field, kind = known[key]
        if rows := row_class(kind):
            values[field] = [
                check(rows, row, _place(row, index, key, where)) for index, row in _rows(key, value, where)
            ]
        else:
            values[field] = _value(cls, field, kind, value, where)
    return values


def build(cls: type[AnyRow], values: dict[str, Any]) -> AnyRow:
    """Build the row of checked values; raise UsageError if one is missing."""
    where = values[WHERE]
    arguments: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.name in values:
            value = values[field.name]
            rows = row_class(fields(cls)[field.name][1]) if field.name in fields(cls) else None
            arguments[field.name] = tuple(build(rows, row) for row in value) if rows else value
        elif field.default is dataclasses.MISSING:
            refuse_missing(field.name, where)
    if cls is Billing:
        _check_billing(arguments, where)
    return cls(**arguments)


def refuse_missing(field: str, where: Where) -> NoReturn:
    """Raise UsageError for a missing key."""
    key = toml_key(field)
    raise UsageError(f"{where.say()}: {key} is missing", hint=_EXAMPLES.get(field, f'{key} = "…"'))


def _rows(key: str, value: Any, where: Where) -> list[tuple[int, dict[str, Any]]]:
    if isinstance(value, dict):
        raise UsageError(f"{where.say(key)}: [{key}] is a single table, but must be rows", hint=f"[[{key}]]")
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise UsageError(f"{where.say(key)}: {key} = {_shown(value)}, but must be tables", hint=f"[[{key}]]")
    return list(enumerate(value))


def _place(row: dict[str, Any], index: int, key: str, where: Where) -> Where:
    label = row.get("name", row.get("device", row.get("framework", row.get("about", row.get("kind", "")))))
    return where.inside(key, index, str(label))


def _refuse_key(key: str, value: Any, known: list[str], where: Where) -> NoReturn:
    if hint := other_unit(key, value, known):
        raise UsageError(f"{where.say(key)}: echelon does not know the unit of {key} = {_shown(value)}", hint=hint)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    raise UsageError(
        f"{where.say(key)}: unknown key {key} (= {_shown(value)}); the keys are {', '.join(known)}",
        hint=f"{near[0]} = {_shown(value)}" if near else 'remove the line, or say it in note = "…"',
    )


def _value(cls: type[Row], field: str, kind: Any, raw: Any, where: Where) -> Any:
    key = toml_key(field)
    wanted, value = _as(kind, raw)
    if wanted:
        text = f"{where.say(key)}: {key} = {_shown(raw)}, but must be {wanted}"
        raise UsageError(text, hint=_example(key, kind, raw))
    if isinstance(value, (int, float)) and value < 0 and (cls, field) not in _MAY_BE_NEGATIVE:
        raise UsageError(
            f"{where.say(key)}: {key} = {_shown(raw)} is less than zero",
            hint=f"{key} = {_shown(-raw)}, or remove the line if the value is not known",
        )
    choices = CHOICES.get((cls, field))
    if choices and value not in choices:
        near = difflib.get_close_matches(str(value).lower(), choices, n=1, cutoff=0.0)
        raise UsageError(
            f"{where.say(key)}: {key} = {_shown(raw)}; the choices are {', '.join(choices)}",
            hint=f'{key} = "{(near or choices)[0]}"',
        )
    return value


def _as(kind: Any, value: Any) -> tuple[str, Any]:
    """Convert a value; return the expected type if that fails, else an empty text, and the value."""
    plain = next((part for part in get_args(kind) if part is not type(None)), kind) if _is_optional(kind) else kind
    if plain == tuple[int, ...]:
        return _as_cores(value)
    if plain == tuple[str, ...]:
        is_list = isinstance(value, list) and all(isinstance(word, str) for word in value)
        return ("", tuple(value)) if is_list else ("a list of texts", None)
    if plain is date:
        is_day = isinstance(value, date) and not isinstance(value, datetime)
        return ("" if is_day else "a date without quotes", value)
    if plain is float:
        return ("" if isinstance(value, (int, float)) and not isinstance(value, bool) else "a number", value)
    if plain is int:
        return ("" if isinstance(value, int) and not isinstance(value, bool) else "a whole number", value)
    if plain is bool:
        return ("" if isinstance(value, bool) else "true or false", value)
    return ("" if isinstance(value, str) else "a text", value)


def _as_cores(value: Any) -> tuple[str, Any]:
    if isinstance(value, list) and all(isinstance(core, int) and core >= 0 for core in value):
        return "", tuple(value)
    numbers = cores.read(value) if isinstance(value, str) else None
    return ("", numbers) if numbers is not None else ('a list of cores such as "1-7,9-15"', None)


def _is_optional(kind: Any) -> bool:
    return type(None) in get_args(kind)


def _example(key: str, kind: Any, value: Any) -> str:
    text = str(value).strip()
    if date in (kind, *get_args(kind)):
        return f"{key} = {text[:10] if text[:4].isdigit() else '2026-11-21'}"
    if kind == tuple[int, ...]:
        return f'{key} = "1-7,9-15"'
    if kind == tuple[str, ...]:
        return f'{key} = ["{text}"]'
    if kind is bool:
        return f"{key} = true"
    if kind is str:
        return f'{key} = "{text}"'
    return f"{key} = {text if text.isdigit() else 8}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{…}"
    if isinstance(value, list):
        return "[" + ", ".join(_shown(item) for item in value[:3]) + (", …]" if len(value) > 3 else "]")
    return f'"{value}"' if isinstance(value, str) else str(value)


def _check_billing(arguments: dict[str, Any], where: Where) -> None:
    has_flat, has_factor = (arguments.get(name) is not None for name in ("per_node_hour", "factor"))
    if has_flat == has_factor:
        state = "both are there" if has_flat else "neither is there"
        raise UsageError(
            f"{where.say()}: a rule is per_node_hour, or factor with cores_per_unit and memory_bytes_per_unit; {state}",
            hint="per_node_hour = 4.0",
        )
