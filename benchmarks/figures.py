"""What was measured, as values, and the table that shows them."""

from __future__ import annotations

import datetime
import math
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata


@dataclass(frozen=True, slots=True)
class Spread:
    """The same quantity measured several times; empty where there is nothing to measure."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def p99(self) -> float:
        """Return the value that 99 % do not exceed: the greatest one of fewer than a hundred."""
        return sorted(self.values)[math.ceil(0.99 * len(self.values)) - 1]

    def over(self, other: Spread) -> Spread:
        """Return the ratio of each value to the one that was measured beside it."""
        return Spread(tuple(ours / theirs for ours, theirs in zip(self.values, other.values, strict=True)))


NOTHING = Spread(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is to be reached: a value in the figure's own unit, or a ratio to what stands beside us."""

    limit: float
    is_ratio: bool

    @property
    def text(self) -> str:
        if math.isinf(self.limit):
            return "–"
        return f"≤ {self.limit:g}" + (" of it" if self.is_ratio else "")


NO_TARGET = Target(limit=math.inf, is_ratio=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One quantity of ours and of the program beside us."""

    what: str
    unit: str
    ours: Spread
    theirs: Spread = NOTHING
    beside: str = ""
    target: Target = NO_TARGET

    @property
    def ratio(self) -> Spread:
        return self.ours.over(self.theirs) if self.theirs.values else NOTHING

    @property
    def is_reached(self) -> bool:
        return (self.ratio if self.target.is_ratio else self.ours).median <= self.target.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the speed table."""

    title: str
    figures: tuple[Figure, ...]
    notes: tuple[str, ...] = ()


def at_most(limit: float) -> Target:
    return Target(limit=limit, is_ratio=False)


def at_most_of_theirs(limit: float) -> Target:
    return Target(limit=limit, is_ratio=True)


HEAD = ("what", "quantity", "echelon", "beside it", "ratio", "target", "reached")


def markdown(rows: Sequence[Row]) -> str:
    """Return the table and the notes below it."""
    lines = [_line(HEAD), _line(["---"] * len(HEAD))]
    for row in rows:
        lines += [_line(_cells(row, figure)) for figure in row.figures]
    notes = [f"- {row.title}: {note}" for row in rows for note in row.notes]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(row: Row, figure: Figure) -> list[str]:
    has_target = not math.isinf(figure.target.limit)
    return [
        row.title,
        figure.what,
        f"{_text(figure.ours)} {figure.unit}",
        f"{figure.beside}: {_text(figure.theirs)} {figure.unit}" if figure.theirs.values else "–",
        _text(figure.ratio) if figure.theirs.values else "–",
        figure.target.text + ("" if figure.target.is_ratio or not has_target else f" {figure.unit}"),
        ("yes" if figure.is_reached else "**no**") if has_target else "–",
    ]


def _text(spread: Spread) -> str:
    """Write a median with its least and greatest value: 2.21 (2.18–2.40)."""
    return f"{_number(spread.median)} ({_number(min(spread.values))}–{_number(max(spread.values))})"


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"


def circumstances(program: str, num_rounds: int, *, also: str = "") -> str:
    """Return where, when and with what was measured, for the line above a table."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("torch", "echelon"))
    load, _, _ = os.getloadavg()
    return (
        f"Measured on {datetime.date.today()} by `python -m benchmarks.{program}`: {also}{os.cpu_count()} cores, load "
        f"average {load:.1f}, Linux {platform.release()}, Python {platform.python_version()}, {versions}; median of "
        f"{num_rounds} with least and greatest value; one thread a rank, gloo."
    )
