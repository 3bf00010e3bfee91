"""Plots as SVG inside a page: curves over time, stacked bars, and histograms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from echelon.units import step_time

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 230, 64, 30, 20
MOST_POINTS = 600
NUM_TICKS = 4
Point = tuple[float, float]


def curves(
    series: Sequence[tuple[str, Sequence[Point]]],
    *,
    x: str,
    y: str,
    written: Callable[[float], str] = lambda value: f"{value:g}",
) -> str:
    """Return a plot of named curves; points that are not finite are left out. Empty if there is no curve.

    `written` writes the numbers of the horizontal axis.

    A series has a class of its own, "s0", "s1"…, which the page colours; its points are thinned to some hundred.
    """
    finite = [point for _, points in series for point in points if math.isfinite(point[1])]
    if len(finite) < 2:
        return ""
    (left, right), (low, high) = _range([point[0] for point in finite]), _range([point[1] for point in finite])
    parts = [*_axes(left, right, low, high, x=x, y=y, written=written)]
    for number, (name, points) in enumerate(series):
        placed = [
            f"{_across(point[0], left, right):.1f},{_up(point[1], low, high):.1f}"
            for point in _thinned(points)
            if math.isfinite(point[1])
        ]
        parts.append(
            f'<polyline class="s{number}" points="{" ".join(placed)}"><title>{escape(name)}</title></polyline>'
        )
    return _picture(parts, f"{y} over {x}")


def bar(parts: Sequence[tuple[str, float]], *, names: Sequence[str], label: str) -> str:
    """Return one bar, cut into named parts, with a legend in which each has its share. Empty if all are zero.

    The place of a part's name in `names` decides its colour, so that bars side by side have the same ones.
    """
    whole = sum(size for _, size in parts)
    if whole <= 0:
        return ""
    drawn, legend, begin = [], [], 0.0
    for name, size in parts:
        number = names.index(name)
        width = size / whole * WIDTH
        text = f"{escape(name)} {size / whole:.1%}"
        place = f'x="{begin:.1f}" y="0" width="{width:.1f}" height="26"'
        drawn.append(f'<rect class="p{number}" {place}><title>{text}</title></rect>')
        legend.append(f'<li><span class="key p{number}"></span>{text}</li>')
        begin += width
    picture = f'<svg viewBox="0 0 {WIDTH} 26" role="img" aria-label="{escape(label)}">{"".join(drawn)}</svg>'
    return f'{picture}<ul class="legend">{"".join(legend)}</ul>'


def histogram(series: Sequence[tuple[str, Sequence[Point]]], *, x: str) -> str:
    """Return the shares of counted values over a logarithmic axis; each point is a value and its count."""
    shares = []
    for name, points in series:
        whole = sum(count for _, count in points)
        if whole:
            shares.append((name, [(math.log10(value), 100 * count / whole) for value, count in points if value > 0]))
    return curves(shares, x=x, y="% of the steps", written=lambda power: step_time(10**power))


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _across(value: float, left: float, right: float) -> float:
    return LEFT + (value - left) / (right - left) * (WIDTH - LEFT - 8)


def _up(value: float, low: float, high: float) -> float:
    return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - BOTTOM - TOP)


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Return the means of groups of points, so that a day of samples stays a small page."""
    size = max(1, -(-len(points) // MOST_POINTS))
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(one[0] for one in group) / len(group), sum(one[1] for one in group) / len(group)) for group in groups]


def ticks(low: float, high: float) -> list[float]:
    """Return some round numbers within a range.

    >>> ticks(3, 189), ticks(1.73, 2.34)
    ([50, 100, 150], [1.8, 2.0, 2.2])
    """
    rough = (high - low) / NUM_TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


def _axes(
    left: float, right: float, low: float, high: float, *, x: str, y: str, written: Callable[[float], str]
) -> list[str]:
    parts = []
    for value in ticks(low, high):
        level = _up(value, low, high)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 8}" y1="{level:.1f}" y2="{level:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in ticks(left, right):
        place = _across(value, left, right)
        parts.append(f'<text x="{place:.1f}" y="{HEIGHT - 14}" text-anchor="middle">{escape(written(value))}</text>')
    parts.append(f'<text x="{WIDTH - 8}" y="{HEIGHT - 2}" text-anchor="end">{escape(x)}</text>')
    parts.append(f'<text x="2" y="{TOP - 6}">{escape(y)}</text>')
    return parts


def _picture(parts: Sequence[str], label: str) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
    return head + "".join(parts) + "</svg>"
