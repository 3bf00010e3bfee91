"""Convert the tables of a machine file into rows, guided by the annotations of the dataclasses."""

from __future__ import annotations

import dataclasses
import difflib
import re
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

from echelon import units
from echelon.errors import UsageError
from echelon.hardware import vendors
from echelon.machines import machine

WHERE = "-where"  # the key under which a checked table keeps its place; it differs from all TOML keys of ours

TABLES = {
    "partitions": "partition", "node_types": "node_type", "billing": "billing", "grids": "grid", "settings": "setting",
    "containers": "container", "modules": "modules", "networks": "network", "references": "reference",
    "quirks": "quirk", "nearest": "nearest", "time_limits": "time_limit",
}  # fmt: skip
"""The TOML name of one row of a field that holds rows."""

CHOICES: dict[tuple[type, str], tuple[str, ...]] = {
    (machine.Machine, "account"): ("required", "optional"),
    (machine.Machine, "qos"): ("required", "optional"),
    (machine.Machine, "device_option"): ("--gpus-per-node", "--gres"),
    (machine.NodeType, "vendor"): (*(vendor.name for vendor in vendors.BY_NAME), "none", "unknown"),
    (machine.Partition, "purpose"): ("batch", "test", "interactive", "request", "unconfirmed"),
    (machine.Setting, "kind"): ("value", "folder"),
    (machine.Container, "command"): ("exec", "run"),
    (machine.Network, "kind"): ("slingshot", "infiniband", "ethernet"),
    (machine.Reference, "backend"): ("nccl", "gloo"),
}
_MAY_BE_NEGATIVE = {(machine.Partition, "preference")}
_EXAMPLES = {
    "source": 'source = "the page, file or ticket that says so"', "seen": f"date = {date(2026, 11, 21)}",
    "name": 'name = "…"', "title": 'title = "…"', "cores": 'cores = "1-7"', "device": "device = 0",
    "node_type": 'node_type = "the name of a [[node_type]]"',
}  # fmt: skip

AnyRow = TypeVar("AnyRow", bound=machine.SourcedFact)


_LAST = ("note", "source", "seen")  # the source follows the facts
_FIELDS: dict[type, dict[str, tuple[str, Any]]] = {}


def fields(cls: type[machine.SourcedFact]) -> dict[str, tuple[str, Any]]:
    """Return the TOML name and the type of each field of a row."""
    if cls not in _FIELDS:
        hints = get_type_hints(cls)
        names = [field.name for field in dataclasses.fields(cls) if field.name not in ("path", *_LAST)]
        names += _LAST
        _FIELDS[cls] = {
            name: (TABLES[name] if row_class(hints[name]) else "date" if name == "seen" else name, hints[name])
            for name in names
        }
    return _FIELDS[cls]


def keys(cls: type[machine.SourcedFact]) -> dict[str, tuple[str, Any]]:
    """Return the field and the type of each key of a table."""
    return {key: (name, kind) for name, (key, kind) in fields(cls).items()}


def toml_key(field: str) -> str:
    """Return the TOML name of a field that holds no rows."""
    return "date" if field == "seen" else field


def row_class(kind: Any) -> type[machine.SourcedFact] | None:
    """Return the class of the rows in a field; None for other fields."""
    first = get_args(kind)[0] if get_args(kind) else None
    return first if isinstance(first, type) and issubclass(first, machine.SourcedFact) else None


def check(cls: type[machine.SourcedFact], table: dict[str, Any], where: Where) -> dict[str, Any]:
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
    if cls is machine.Billing:
        _check_billing(arguments, where)
    return cls(**arguments)


def refuse_missing(field: str, where: Where) -> NoReturn:
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


def _value(cls: type[machine.SourcedFact], field: str, kind: Any, raw: Any, where: Where) -> Any:
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
        if isinstance(value, list) and all(isinstance(core, int) and core >= 0 for core in value):
            return "", tuple(value)
        numbers = read(value) if isinstance(value, str) else None
        return ("", numbers) if numbers is not None else ('a list of cores such as "1-7,9-15"', None)
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
    if (arguments.get("price_per_unit") is None) != (not arguments.get("currency")):
        missing = "currency" if arguments.get("price_per_unit") is not None else "price_per_unit"
        raise UsageError(f"{where.say()}: a price needs price_per_unit and currency, but {missing} is missing",
                         hint='currency = "EUR"' if missing == "currency" else "price_per_unit = 1.0")  # fmt: skip


_MOST = 1 << 16


def read(text: str) -> tuple[int, ...] | None:
    """Return the numbers of a list in ascending order; None if it is invalid."""
    numbers: set[int] = set()
    for part in text.split(",") if text else ():
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        if not match:
            return None
        low, high = int(match[1]), int(match[2] or match[1])
        if not low <= high < _MOST:
            return None
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


# A unit that people write, our unit, and the factor between them.
_UNITS = {
    "kb": ("bytes", 1 << 10), "kib": ("bytes", 1 << 10), "mb": ("bytes", 1 << 20), "mib": ("bytes", 1 << 20),
    "gb": ("bytes", 1 << 30), "gib": ("bytes", 1 << 30), "tb": ("bytes", 1 << 40), "tib": ("bytes", 1 << 40),
    "seconds": ("minutes", 1 / 60), "hours": ("minutes", 60), "days": ("minutes", 1440), "time": ("minutes", 1),
    "walltime": ("minutes", 1), "gbps": ("bits_per_second", 10**9), "gbit": ("bits_per_second", 10**9),
    "": ("bytes", 1),
}  # fmt: skip
_WORDS = {"gpu": "device", "gpus": "devices", "gcd": "device", "gcds": "devices", "cpus": "cores", "cpu": "core",
          "mem": "memory", "ram": "memory"}  # fmt: skip


def other_unit(key: str, value: Any, known: list[str]) -> str:
    """Return the intended line for a key with another unit or word; empty if there is none."""
    words = [_WORDS.get(word, word) for word in key.lower().split("_")]
    for unit in (words[-1], ""):
        if unit not in _UNITS:
            continue
        ours, factor = _UNITS[unit]
        stem = words[:-1] if unit else words
        meant = "_".join([*stem, ours])
        candidates = [name for name in known if name == meant or sorted(name.split("_")) == sorted(meant.split("_"))]
        if candidates:
            return _line(candidates[0], value, factor)
    spelled = "_".join(words)
    return f"{spelled} = {value}" if spelled != key and spelled in known else ""


def _line(key: str, raw: Any, factor: float) -> str:
    number = _number(raw, factor, is_time=key.endswith("minutes"))
    if number is None:
        return f"{key} = …"
    value = round(number)
    return f"{key} = {value}" + (f"   # {units.size(value)}" if key.endswith("bytes") and value > 0 else "")


def _number(value: Any, factor: float, *, is_time: bool) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value * factor
    if not isinstance(value, str):
        return None
    try:  # a text includes its unit: "480G", "2-00:00:00"
        return units.minutes(value) if is_time else units.size_bytes(value)
    except UsageError:
        return None


_HEADER = re.compile(r"\s*(\[\[?)\s*([\w.\-]+)\s*\]")  # [[node_type.nearest]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A table of a file."""

    path: str
    text: str
    tables: tuple[tuple[str, int], ...] = ()
    """The names of the nested tables, outermost first, each with its index among equal names."""
    label: str = ""
    """The row's own name."""

    def inside(self, table: str, index: int, label: str) -> Where:
        return Where(path=self.path, text=self.text, tables=(*self.tables, (table, index)), label=label)

    def say(self, key: str = "") -> str:
        """Describe file, line and table, and the key if one is given."""
        line = self._line(key)
        parts = [f"{self.path}, line {line}" if line else self.path]
        if self.tables:
            parts.append(f"[[{self._header}]]" + (f' "{self.label}"' if self.label else ""))
        return ": ".join(parts)

    @property
    def _header(self) -> str:
        return ".".join(table for table, _ in self.tables)

    def _line(self, key: str) -> int:
        """Return the line of a key, or else of its table's header; 0 if unknown."""
        at: tuple[tuple[str, int], ...] = ()
        header_line = 0 if self.tables else 1
        for number, line in enumerate(self.text.splitlines(), 1):
            if match := _HEADER.match(line):
                at = _enter(at, match.group(2))
                header_line = number if at == self.tables else header_line
            elif at == self.tables and key and re.match(rf'\s*"?{re.escape(key)}"?\s*=', line):
                return number
        return header_line


def _enter(at: tuple[tuple[str, int], ...], header: str) -> tuple[tuple[str, int], ...]:
    """Return the place of a header, counted from the place of the header before."""
    names = header.split(".")
    shared = 0
    while shared < min(len(names) - 1, len(at)) and at[shared][0] == names[shared]:
        shared += 1
    place = at[:shared]
    for name in names[shared:]:
        level = len(place)
        before = at[level] if level < len(at) and at[:level] == place else None
        place = (*place, (name, before[1] + 1 if before and before[0] == name else 0))
    return place
