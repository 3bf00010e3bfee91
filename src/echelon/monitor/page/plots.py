"""All plots: curves, bars and histograms inside a page, and figures that matplotlib writes into files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from typing import Any

from echelon.errors import UsageError
from echelon.units import step_time

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 560, 248, 64, 42, 26
MOST_POINTS = 600
NUM_TICKS = 4
MARGIN = 40
"""A number so near to the right border ends at its place, or it would be cut off."""
ENDINGS = (".svg", ".png")
Point = tuple[float, float]

INK = "#1c1e21"
LINES = ("#00608f", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#8a6100", "#59636e")
"""The colours of lines on white; the first two also have one on black."""
LINES_ON_BLACK = ("#6cc1ee", "#f0883e")
FILLS = ("#e69f00", "#56b4e9", "#f08a5d", "#4cc3a0", "#d59ac0", "#b9dcf2", "#b8b8b8")
"""The colours of surfaces, for black text; all people tell them apart (Okabe and Ito: jfly.uni-koeln.de/color)."""
_STRIPES = {0: ("45deg", "#ffd37a"), 2: ("-45deg", "#ffc3a6"), 4: ("90deg", "#f3cfe5")}
"""The second colours of the parts of a step that are no computing: surfaces 0, 2 and 4."""


def _of_part(number: int) -> str:
    colour = FILLS[number]
    if number in _STRIPES:
        angle, other = _STRIPES[number]
        colour = f"repeating-linear-gradient({angle}, {colour} 0 6px, {other} 6px 12px)"
    return f".part-{number} {{ background: {colour}; }}"


STYLE = f"""
:root {{
  --paper: #f7f6f3; --card: #ffffff; --ink: {INK}; --dim: #5d636b; --rule: #dcdad3;
  --s0: {LINES[0]}; --s1: {LINES[1]};
}}
@media (prefers-color-scheme: dark) {{
  :root {{
    --paper: #101418; --card: #181e24; --ink: #e4e7ea; --dim: #98a2ad; --rule: #2b343d;
    --s0: {LINES_ON_BLACK[0]}; --s1: {LINES_ON_BLACK[1]};
  }}
}}
svg text {{ font-size: 15px; fill: var(--dim); }}
svg .rule {{ stroke: var(--rule); vector-effect: non-scaling-stroke; }}
svg .curve {{
  stroke: var(--s0); stroke-width: 2; fill: none; vector-effect: non-scaling-stroke; stroke-linejoin: round;
}}
svg .curve.s1 {{ stroke: var(--s1); }}
.bar {{ display: flex; height: 1.9rem; border-radius: .3rem; overflow: hidden; border: 1px solid var(--rule); }}
.bar > span {{
  flex-basis: 0; min-width: 0; overflow: hidden; white-space: nowrap; text-align: center; color: #000;
  font: .8rem/1.8rem ui-monospace, monospace;
}}
.row {{ display: flex; align-items: center; gap: .7rem; margin: .2rem 0; }}
.row > strong {{ flex: 0 0 4.5rem; font-weight: 400; color: var(--dim); }}
.row > .bar {{ flex: 1; height: 1.2rem; }}
.bar > .begins {{ border-left: 2px solid {INK}; }}
.legend {{
  display: flex; flex-wrap: wrap; gap: .25rem 1.2rem; margin: .45rem 0 0; padding: 0; list-style: none;
  font-size: .9rem;
}}
.legend i {{
  display: inline-block; width: .9rem; height: .9rem; margin-right: .4rem; vertical-align: -.1rem;
  border-radius: .15rem; border: 1px solid var(--dim);
}}
.legend .s0 {{ background: var(--s0); }}
.legend .s1 {{ background: var(--s1); }}
{chr(10).join(map(_of_part, range(len(FILLS))))}
"""
"""What all pages with plots have in their style."""


def curves(
    series: Sequence[tuple[str, Sequence[Point]]],
    *,
    x: str,
    y: str,
    written: Callable[[float], str] = lambda value: f"{value:g}",
) -> str:
    """Return a plot of named curves; points that are not finite are left out. Empty if there is no curve.

    `written` writes the numbers of the horizontal axis.

    A series has a class of its own, "s0" or "s1", which decides its colour; its points are thinned to some hundred.
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
            f'<polyline class="curve s{number}" points="{" ".join(placed)}"><title>{escape(name)}</title></polyline>'
        )
    return _picture(parts, f"{y} over {x}")


def bar(parts: Sequence[tuple[str, float]], *, names: Sequence[str], label: str) -> str:
    """Return one bar, cut into named parts, with a legend in which each has its share. Empty if all are zero.

    The place of a part's name in `names` decides its colour, so that bars side by side have the same ones.
    """
    whole = sum(size for _, size in parts)
    if whole <= 0:
        return ""
    drawn, told = "", []
    for name, size in parts:
        part, text = f"part-{names.index(name)}", f"{escape(name)} {size / whole:.1%}"
        drawn += f'<span class="{part}" style="flex-grow:{size / whole:.5f}" title="{text}"></span>'
        told.append((part, text))
    return f'<div class="bar" role="img" aria-label="{escape(label)}">{drawn}</div>{legend(told)}'


def timeline(rows: Sequence[tuple[str, Sequence[Sequence[tuple[str, float]]]]], *, names: Sequence[str]) -> str:
    """Return a bar for each named row: its spans of time one after the other, each cut into named parts.

    All rows have one scale, and one legend below them. Empty if there is no time.
    """
    longest = max((sum(size for span in spans for _, size in span) for _, spans in rows), default=0.0)
    if longest <= 0:
        return ""
    drawn = ""
    for title, spans in rows:
        cells = [
            f'<span class="part-{names.index(name)}{" begins" if not place and number else ""}" '
            f'style="flex-grow:{size / longest:.5f}" title="{escape(name)} {step_time(size)}"></span>'
            for number, span in enumerate(spans)
            for place, (name, size) in enumerate(span)
        ]
        drawn += f'<div class="row"><strong>{escape(title)}</strong><div class="bar">{"".join(cells)}</div></div>'
    shown = dict.fromkeys(name for _, spans in rows for span in spans for name, size in span if size > 0)
    return drawn + legend([(f"part-{names.index(name)}", escape(name)) for name in shown])


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Return a legend; an entry is the class that has its colour, and its text as HTML."""
    return f'<ul class="legend">{"".join(f"<li><i class={key!r}></i>{text}</li>" for key, text in entries)}</ul>'


def histogram(series: Sequence[tuple[str, Sequence[Point]]], *, x: str) -> str:
    """Return the shares of counted values over a logarithmic axis; each point is a value and its count."""
    shares = []
    for name, points in series:
        whole = sum(count for _, count in points)
        if whole:
            shares.append((name, [(math.log10(value), 100 * count / whole) for value, count in points if value > 0]))
    return curves(shares, x=x, y="% of all steps", written=lambda power: step_time(10**power))


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
        parts.append(f'<line class="rule" x1="{LEFT}" x2="{WIDTH - 8}" y1="{level:.1f}" y2="{level:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{level + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in ticks(left, right):
        place = _across(value, left, right)
        anchor = "end" if place > WIDTH - MARGIN else "middle"
        parts.append(f'<text x="{place:.1f}" y="{HEIGHT - 22}" text-anchor="{anchor}">{escape(written(value))}</text>')
    parts.append(f'<text x="{WIDTH - 8}" y="{HEIGHT - 4}" text-anchor="end">{escape(x)}</text>')
    parts.append(f'<text x="2" y="{TOP - 12}">{escape(y)}</text>')
    return parts


def _picture(parts: Sequence[str], label: str) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
    return head + "".join(parts) + "</svg>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A named line of a figure."""

    name: str
    points: Sequence[Point]
    style: str = "-"
    """As matplotlib writes it: "-", "--", ":", "o-", "."."""
    colour: str = ""
    """Empty: that of LINES at the place of this line."""
    spread: tuple[Sequence[float], Sequence[float]] | None = None
    """How far each point may lie lower, and higher."""
    width: float = 1.8
    alpha: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One plot of a figure."""

    x: str
    y: str
    lines: Sequence[Line] = ()
    surfaces: Sequence[tuple[str, str, Sequence[float]]] = ()
    """Named surfaces on top of each other, with their colours."""
    levels: Sequence[Line] = ()
    """Lines over the whole width; each has one point."""
    marks: Sequence[tuple[str, float]] = ()
    """Places on the horizontal axis, which have names at the top."""
    logarithmic: str = ""
    """The logarithmic axes: "x", "y", "xy"."""
    x_ticks: Sequence[float] = ()
    x_names: Sequence[str] = ()
    """What stands at these ticks; empty: their numbers."""
    y_ticks: Sequence[float] = ()
    top: float | None = None
    """Where the vertical axis ends; it then begins at 0. None: as the lines need it."""


def paths(name: str, *, usual: str) -> tuple[str, str]:
    """Return the two files of a figure; the name may have the ending of one of them.

    Raise UsageError, before any run, if they could not be written; `usual` is the name in the hint.
    """
    stem, ending = os.path.splitext(name)
    stem = stem if ending.lower() in ENDINGS else name
    if not os.path.basename(stem) or os.path.isdir(stem):
        raise UsageError(f"--plot {name or repr('')}: give the name of a picture", hint=f"--plot {usual}")
    refuse_unwritable(name, stem, usual=usual)
    return stem + ENDINGS[0], stem + ENDINGS[1]


def refuse_unwritable(name: str, path: str, *, usual: str) -> None:
    """Raise UsageError if a figure could not be written to a path; `name` is what the person typed."""
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"--plot {name}: {folder} is not a folder that you can write", hint=f"--plot {usual}")
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed here", hint="pip install matplotlib")


def save(
    panels: Sequence[Panel],
    files: Sequence[str],
    *,
    title: str = "",
    size: tuple[float, float] = (10, 4.5),
    heights: Sequence[float] = (),
) -> None:
    """Write panels side by side into files, with `heights` one below the other; the same panels give the same SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    one_below = {"nrows": len(panels), "sharex": True, "height_ratios": heights}
    grid = figure.subplots(squeeze=False, **(one_below if heights else {"ncols": len(panels)}))
    for axes, panel in zip(grid.flat, panels, strict=True):
        _draw(axes, panel)
    for axes, panel in zip(grid.flat, panels, strict=True):
        axes.set(xlabel="" if heights and axes is not grid.flat[-1] else panel.x)
    if title:
        figure.suptitle(title, fontsize=10)
    with mpl.rc_context({"svg.hashsalt": "echelon", "svg.fonttype": "none"}):
        for path in files:
            figure.savefig(path, dpi=120, metadata={"Date": None} if path.endswith(ENDINGS[0]) else None)


def _draw(axes: Any, panel: Panel) -> None:
    if panel.surfaces:
        names, colours, heights = zip(*panel.surfaces, strict=True)
        axes.stackplot(range(len(heights[0])), heights, labels=names, colors=colours, step="post")
        axes.set_xlim(0, len(heights[0]) - 1)
    for number, line in enumerate(panel.lines):
        across, up = zip(*line.points, strict=True) if line.points else ((), ())
        colour = line.colour or LINES[number % len(LINES)]
        axes.errorbar(across, up, yerr=line.spread, fmt=line.style, color=colour, label=line.name, capsize=3,
                      linewidth=line.width, alpha=line.alpha)  # fmt: skip
    for line in panel.levels:
        height = line.points[0][1]
        axes.axhline(height, linestyle=line.style, color=line.colour or INK, label=line.name, linewidth=line.width)
    for axis in panel.logarithmic:
        axes.set(**{f"{axis}scale": "log"})
    for name, place in panel.marks:
        axes.axvline(place, color=INK, linewidth=0.5, alpha=0.5)
        axes.annotate(name, (place, 1), xycoords=("data", "axes fraction"), xytext=(2, -12), textcoords="offset points")
    for values, put in ((panel.x_ticks, axes.set_xticks), (panel.y_ticks, axes.set_yticks)):
        if values:
            is_named = panel.x_names and values is panel.x_ticks
            put(values, panel.x_names if is_named else [f"{value:g}" for value in values])
            axes.minorticks_off()
    axes.set_ylabel(panel.y)
    if panel.top is not None:
        axes.set_ylim(0, panel.top)
    if axes.get_legend_handles_labels()[0]:
        outside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "frameon": False} if panel.surfaces else {}
        axes.legend(fontsize=8, **outside)
