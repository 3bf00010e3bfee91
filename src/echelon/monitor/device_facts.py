"""What a person should hear of a run's devices: idle, held down by heat or power, almost full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from echelon.environment.hostlist import compress
from echelon.units import size

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]  # node → what was seen of each of its devices
IDLE, THROTTLED, FULL_MEMORY = "idle devices", "throttled devices", "memory almost full"
LEAST_LOOKS = 6  # one look each ten seconds: imports may take a minute
LARGE_PERCENT = 20.0  # a device is throttled for a large part of the time from here on
LOW_CLOCK = 0.75
"""Devices that work hard are always at their power cap; it counts if it costs more than a quarter of the clock."""
FULL = 0.95
_POWER_CAP = "power cap"


def facts(rows: Rows) -> list[Fact]:
    """Return what is worth a line, the most important first."""
    return [fact for rule in (_idle, _throttled, _full) if (fact := rule(rows)) is not None]


def _idle(rows: Rows) -> Fact | None:
    idle = _chosen(rows, lambda row: row.get("most") == 0 and row["looks"] >= LEAST_LOOKS)
    if not idle:
        return None
    return _fact(
        IDLE,
        f"echelon never saw {_count(idle)} of {_count(rows)} devices busy: {_listed(idle)}",
        idle,
        evidence=f"no load in {min(int(row['looks']) for _, row in _all(idle))} spans of ten seconds or more",
        remedy="ask for fewer devices, or start a rank for each device",
    )


def _throttled(rows: Rows) -> Fact | None:
    throttled = _chosen(rows, lambda row: bool(_reasons(row)))
    if not throttled:
        return None
    node, worst = max(_all(throttled), key=lambda pair: max(_reasons(pair[1]).values()))
    evidence = f"{worst['device']} on {node}: {_held_down(worst)}"
    which = _listed(throttled) if _count(throttled) > 1 else ""
    return _fact(
        THROTTLED,
        f"{_count(throttled)} of {_count(rows)} devices {_were(throttled)} throttled for a large part of the time: "
        + (f"{which}; most of all {evidence}" if which else evidence),
        throttled,
        evidence=evidence,
        remedy=f"leave the node out and tell the support: --exclude={compress(list(throttled))}",
    )


def _full(rows: Rows) -> Fact | None:
    full = _chosen(rows, lambda row: _used(row) >= FULL)
    if not full:
        return None
    node, fullest = max(_all(full), key=lambda pair: _used(pair[1]))
    most = f"{size(fullest['memory_used_most_bytes'])} of {size(fullest['memory_bytes'])}"
    told = f"{_count(full)} of {_count(rows)} devices used more than {FULL:.0%} of the memory"
    return _fact(
        FULL_MEMORY,
        f"{told}: {_listed(full)} (up to {most})",
        full,
        evidence=f"{fullest['device']} on {node}: {most}",
        remedy="larger inputs may not fit; a smaller batch, or sharded weights, leave room",
    )


def _fact(kind: str, message: str, rows: Rows, *, evidence: str, remedy: str) -> Fact:
    return Fact(
        kind=kind,
        line=f"{message}; {remedy}",
        evidence={"nodes": sorted(rows), "message": message, "evidence": evidence, "remedy": remedy},
    )


def _reasons(row: Row) -> Mapping[str, float]:
    """Return the reasons that held a device down for a large part of the time, each with its percentage."""
    if row.get("looks", 0) < LEAST_LOOKS:
        return {}
    clock, most = row.get("throttled_clock_mhz"), row.get("clock_most_mhz")
    is_slow = clock is not None and most is not None and clock <= LOW_CLOCK * most
    return {
        reason: percent
        for reason, percent in row.get("throttled_percent", {}).items()
        if percent >= LARGE_PERCENT and (reason != _POWER_CAP or is_slow)
    }


def _held_down(row: Row) -> str:
    """Write why, how long and how far a device was held down: thermal for 42% of the time, at 1005 of 1980 MHz."""
    reasons = sorted(_reasons(row).items(), key=lambda pair: -pair[1])
    words = " and ".join(f"{reason} for {percent:.0f}% of the time" for reason, percent in reasons)
    clock, most = row.get("throttled_clock_mhz"), row.get("clock_most_mhz")
    return words + (f", at {clock} of {most} MHz" if clock is not None and most is not None else "")


def _used(row: Row) -> float:
    """Return the largest part of a device's memory that was in use; 0 if that is not known."""
    whole = row.get("memory_bytes", 0)
    return float(row.get("memory_used_most_bytes", 0) / whole) if whole else 0.0


def _chosen(rows: Rows, is_chosen: Any) -> dict[str, list[Row]]:
    chosen = {node: [row for row in devices if is_chosen(row)] for node, devices in rows.items()}
    return {node: devices for node, devices in chosen.items() if devices}


def _all(rows: Rows) -> list[tuple[str, Row]]:
    return [(node, row) for node, devices in rows.items() for row in devices]


def _count(rows: Rows) -> int:
    return sum(len(devices) for devices in rows.values())


def _were(rows: Rows) -> str:
    return "was" if _count(rows) == 1 else "were"


def _listed(rows: Rows) -> str:
    """List devices by node; nodes with equal devices share an entry."""
    from echelon.topology.cpus import cpu_list

    nodes: dict[str, list[str]] = {}
    for node, devices in rows.items():
        nodes.setdefault(cpu_list([row["device"] for row in devices]), []).append(node)
    return "; ".join(f"{devices} on {compress(names)}" for devices, names in nodes.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A line for a person, and its evidence for programs."""

    kind: str
    line: str
    evidence: dict[str, Any]
