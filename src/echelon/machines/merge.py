"""Lay one machine file over another: facts that the upper file lacks stay."""

from __future__ import annotations

from typing import Any

from echelon.machines import schema
from echelon.machines.machine import Row

# Two rows of a table are about the same thing if these fields are equal.
_IDENTITY = {
    "partitions": ("name",), "node_types": ("name",), "settings": ("name",), "containers": ("name",),
    "modules": ("framework",), "networks": ("kind",), "billing": ("partitions",), "quirks": ("about", "text"),
    "references": ("node_type", "num_nodes", "ranks_per_node", "backend"), "nearest": ("device",),
    "time_limits": ("max_nodes",),
}  # fmt: skip

Values = dict[str, Any]


def overlay(below: Values, above: Values) -> Values:
    """Merge checked values row by row; those of `above` win."""
    merged = dict(below)
    for field, value in above.items():
        if field in _IDENTITY:
            merged[field] = _rows(field, below.get(field, []), value)
        elif field != schema.WHERE:
            merged[field] = value
    return merged


def is_same(field: str, row: Row, other: Row) -> bool:
    """Say whether two rows are about the same thing."""
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
