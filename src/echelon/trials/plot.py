"""Speedup, efficiency and memory as figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from echelon.estimate import timeline
from echelon.estimate.log import EventLog
from echelon.estimate.speed.runs import Interval
from echelon.estimate.verdict import NAMES
from echelon.monitor.page.plots import FILLS, INK, LINES, Line, Panel, save
from echelon.trials.efficiency import ENOUGH, SizeRow
from echelon.trials.question import Question
from echelon.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A size in the picture."""

    num_ranks: int
    speedup: Interval
    efficiency: Interval


def draw(question: Question, sizes: Sequence[SizeRow], files: Sequence[str]) -> None:
    """Draw the sizes that have numbers: speedup on the left, efficiency on the right."""
    draw_points(question.title, points(sizes), (), files)


def points(sizes: Sequence[SizeRow]) -> list[Point]:
    """Return the sizes that have numbers."""
    return [
        Point(num_ranks=row.num_ranks, speedup=row.speedup, efficiency=row.efficiency)
        for row in sizes
        if row.speedup is not None and row.efficiency is not None
    ]


def draw_points(title: str, measured: Sequence[Point], estimated: Sequence[Point], files: Sequence[str]) -> None:
    """Draw measured sizes, and estimated ones in another colour, beside the ideal."""
    ranks = [float(point.num_ranks) for point in (*measured, *estimated)] if measured else []
    ideal = [number / ranks[0] for number in ranks]
    faster, share = [_ideal(ranks, ideal)], [_ideal(ranks, [100.0] * len(ranks))]
    for sizes, label, colour in ((measured, "measured", LINES[0]), (estimated, "estimated", LINES[1])):
        if ranks and sizes:
            numbers = [point.num_ranks for point in sizes]
            faster.append(_line(numbers, [point.speedup for point in sizes], label, colour))
            share.append(_line(numbers, [point.efficiency for point in sizes], label, colour, factor=100.0))
    enough = Line(name=f"{ENOUGH:.0%}", points=[(0.0, 100 * ENOUGH)], style=":", colour=LINES[4])
    highest = max([100.0, *(100 * point.efficiency.most for point in (*measured, *estimated))])
    panels = [
        Panel(x="ranks", y="speedup", lines=faster, logarithmic="xy", x_ticks=ranks, y_ticks=ideal),
        Panel(x="ranks", y="parallel efficiency in %", lines=share, levels=[enough], logarithmic="x", x_ticks=ranks,
              top=1.05 * highest),
    ]  # fmt: skip
    save(panels if ranks else [Panel(x=panel.x, y=panel.y) for panel in panels], files, title=title)


def _ideal(ranks: Sequence[float], values: Sequence[float]) -> Line:
    return Line(name="ideal", points=list(zip(ranks, values, strict=True)), style="--", colour=INK, alpha=0.5)


def _line(ranks: Sequence[float], values: Sequence[Interval], label: str, colour: str, factor: float = 1.0) -> Line:
    points = [(number, factor * value.value) for number, value in zip(ranks, values, strict=True)]
    below = [factor * (value.value - value.least) for value in values]
    above = [factor * (value.most - value.value) for value in values]
    return Line(name=label, points=points, style="o-", colour=colour, spread=(below, above))


_ORDER = ("parameter", "state", "gradient", "buffer", "input", "activation", "temporary")


def draw_memory(log: EventLog, memory_bytes: int, files: Sequence[str]) -> None:
    """Draw the live bytes of the last step by category; the dashed line is the device's memory (0: none)."""
    course = timeline.course(log)
    layers = timeline.layers(log)
    most = max(course.num_bytes) / GIB
    is_near = memory_bytes and memory_bytes / GIB < 2 * most
    level = Line(name="", points=[(0.0, memory_bytes / GIB)], style="--", width=1.0)
    panel = Panel(
        x="allocations and frees of one step",
        y="GiB",
        surfaces=[
            (NAMES[name], colour, [value / GIB for value in layers[name]])
            for name, colour in zip(_ORDER, FILLS, strict=True)
            if any(layers.get(name, ()))
        ],
        levels=[level] if is_near else [],
        marks=[(name, position) for name, position in course.phases if name != "end"],
        top=max(1.12 * most, 1.05 * memory_bytes / GIB if is_near else 0.0, 1e-9),
    )
    save([panel], files, size=(9, 4.5))
