"""Write and draw how fast ranks exchange data: bandwidth and latency of each operation over a range of sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from echelon.monitor.page.plots import Line, Panel, save
from echelon.units import counted, size, step_time

KIB, MIB = 1 << 10, 1 << 20
ON_CORES = (KIB, 8 * KIB, 64 * KIB, 512 * KIB, 4 * MIB)
ON_DEVICES = (*ON_CORES, 32 * MIB, 256 * MIB)  # the bytes that are sent without --sizes
HEAD = ("size", "time", "algorithm", "bus")
Result = Mapping[str, Any]


def text(result: Result) -> str:
    """Return a table for each operation, and the machine's reference."""
    lines = [_title(result)]
    for name, rows in result["curves"].items():
        lines += ["", name if rows else f"{name}: {result['backend']} does not have it"]
        if rows:
            cells = [HEAD, *((_cells(row)) for row in rows)]
            lines += ["  ".join(cell.rjust(13) for cell in row) for row in cells]
    return "\n".join([*lines, "", _compared(result)]) + "\n"


def wrong(result: Result) -> list[str]:
    """Return the operations whose results were not right, with the size."""
    return [
        f"{name} of {size(row['bytes'])} gave a wrong result"
        for name, rows in result["curves"].items()
        for row in rows
        if not row["is_right"]
    ]


def draw(result: Result, files: Sequence[str]) -> None:
    """Draw bus bandwidth on the left and latency on the right, over the size; the reference is a line."""
    bandwidth, latency = [], []
    for name, rows in result["curves"].items():
        rates = [(row["bytes"], row["bus_bytes_per_second"] / 1e9) for row in rows]
        bandwidth.append(Line(name=name, points=rates, style="o-"))
        latency.append(Line(name="", points=[(row["bytes"], row["seconds"] * 1e6) for row in rows], style="o-"))
    levels = []
    if (reference := result["reference"]) is not None:
        height = reference["bytes_per_second"] / 1e9
        levels.append(Line(name=f"{reference['name']} (all-reduce)", points=[(0.0, height)], style="--"))
    panels = [
        Panel(x="bytes", y="bus bandwidth in GB/s", lines=bandwidth, levels=levels, logarithmic="xy"),
        Panel(x="bytes", y="time in µs", lines=latency, logarithmic="xy"),
    ]
    save(panels, files, title=_title(result))


def _title(result: Result) -> str:
    ranks, nodes = counted(result["num_ranks"], "rank"), counted(len(result["nodes"]), "node")
    return f"{ranks} on {nodes} ({result['backend']}, {result['device']})"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    rates = [_rate(row[key]) for key in ("algorithm_bytes_per_second", "bus_bytes_per_second")]
    return (size(row["bytes"]), step_time(row["seconds"]), *rates)


def _rate(bytes_per_second: float) -> str:
    """Write a bandwidth.

    >>> _rate(2.5e9), _rate(6e5)
    ('2.50 GB/s', '0.60 MB/s')
    """
    unit, factor = ("GB", 1e9) if bytes_per_second >= 1e9 else ("MB", 1e6)
    return f"{bytes_per_second / factor:.2f} {unit}/s"


def _compared(result: Result) -> str:
    reference = result["reference"]
    if reference is None:
        return (
            "echelon has no reference for this machine, backend and number of ranks: echelon check --collectives --keep"
        )
    best = max((row["bus_bytes_per_second"] for row in result["sweep"]), default=0.0)
    share = best / reference["bytes_per_second"]
    return (
        f"all-reduce reaches {share:.0%} of {reference['name']}: {_rate(reference['bytes_per_second'])} "
        f"({reference['source']})"
    )
