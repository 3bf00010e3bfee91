"""Suggest the line for a key with another unit or word."""

from __future__ import annotations

from typing import Any

from echelon import units
from echelon.errors import UsageError

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
