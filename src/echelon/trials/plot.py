"""Draw speedup, efficiency and memory with matplotlib, if it is installed, as SVG and as PNG."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from echelon.errors import UsageError
from echelon.estimate import timeline
from echelon.estimate.log import EventLog
from echelon.estimate.verdict import NAMES
from echelon.trials.efficiency import ENOUGH, Range, Row
from echelon.trials.question import Question
from echelon.units import GIB

ENDINGS = (".svg", ".png")


def paths(name: str, *, usual: str) -> tuple[str, str]:
    """Return the two files of a picture; the name may have the ending of one of them.

    Raise UsageError, before any run, if they could not be written; `usual` is the name in the hint.
    """
    stem, ending = os.path.splitext(name)
    stem = stem if ending.lower() in ENDINGS else name
    if not os.path.basename(stem) or os.path.isdir(stem):
        raise UsageError(f"--plot {name or repr('')}: give the name of a picture", hint=f"--plot {usual}")
    folder = os.path.dirname(stem) or "."
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"--plot {name}: {folder} is not a folder that you can write", hint=f"--plot {usual}")
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed here", hint="pip install matplotlib")
    return stem + ENDINGS[0], stem + ENDINGS[1]


def save(figure: Any, files: Sequence[str]) -> None:
    """Write a figure into files; the same figure gives the same SVG."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "echelon", "svg.fonttype": "none"}):
        for path in files:
            is_svg = path.endswith(ENDINGS[0])
            figure.savefig(path, dpi=120, metadata={"Date": None} if is_svg else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A size in the picture."""

    num_ranks: int
    speedup: Range
    efficiency: Range


def draw(question: Question, sizes: Sequence[Row], files: Sequence[str]) -> None:
    """Draw the sizes that have numbers: speedup on the left, efficiency on the right."""
    draw_points(question.title, points(sizes), (), files)


def points(sizes: Sequence[Row]) -> list[Point]:
    """Return the sizes that have numbers."""
    return [
        Point(num_ranks=row.num_ranks, speedup=row.speedup, efficiency=row.efficiency)
        for row in sizes
        if row.speedup is not None and row.efficiency is not None
    ]


def draw_points(title: str, measured: Sequence[Point], estimated: Sequence[Point], files: Sequence[str]) -> None:
    """Draw measured sizes, and estimated ones in another colour, beside the ideal."""
    from matplotlib.figure import Figure

    ranks = [point.num_ranks for point in (*measured, *estimated)]
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    faster, share = figure.subplots(1, 2)
    if measured:
        ideal = [number / ranks[0] for number in ranks]
        faster.plot(ranks, ideal, color="black", linestyle="--", alpha=0.5, label="ideal")
        share.plot(ranks, [100.0] * len(ranks), color="black", linestyle="--", alpha=0.5, label="ideal")
        share.axhline(100 * ENOUGH, color="tab:red", linestyle=":", label=f"{ENOUGH:.0%}")
        for sizes, label, colour in ((measured, "measured", "tab:blue"), (estimated, "estimated", "tab:orange")):
            if sizes:
                numbers = [point.num_ranks for point in sizes]
                _line(faster, numbers, [point.speedup for point in sizes], label, colour)
                _line(share, numbers, [point.efficiency for point in sizes], label, colour, factor=100.0)
        faster.set(xscale="log", yscale="log")
        share.set(xscale="log", ylim=(0, None))
        for axes in (faster, share):
            axes.set_xticks(ranks, [str(number) for number in ranks])
            axes.minorticks_off()
            axes.legend()
        faster.set_yticks(ideal, [f"{value:g}" for value in ideal])
    faster.set(xlabel="ranks", ylabel="speedup")
    share.set(xlabel="ranks", ylabel="parallel efficiency in %")
    figure.suptitle(title, fontsize=10)
    save(figure, files)


def _line(axes: Any, ranks: list[int], values: Sequence[Range], label: str, colour: str, factor: float = 1.0) -> None:
    middle = [factor * value.value for value in values]
    below = [factor * (value.value - value.least) for value in values]
    above = [factor * (value.most - value.value) for value in values]
    axes.errorbar(ranks, middle, yerr=(below, above), marker="o", capsize=3, color=colour, label=label)


_ORDER = ("parameter", "state", "gradient", "buffer", "input", "activation", "temporary")
_COLOURS = ("#3b6ea5", "#7fa7d1", "#e0a458", "#b8b8b8", "#8c8c8c", "#5b9e6f", "#c96a5b")


def draw_memory(log: EventLog, memory_bytes: int, files: Sequence[str]) -> None:
    """Draw the live bytes of the last step by category; the dashed line is the device's memory (0: none)."""
    from matplotlib.figure import Figure

    course = timeline.course(log)
    layers = timeline.layers(log)
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    names = [name for name in _ORDER if any(layers.get(name, ()))]
    axes.stackplot(
        range(len(course.num_bytes)),
        [[value / GIB for value in layers[name]] for name in names],
        labels=[NAMES[name] for name in names],
        colors=[_COLOURS[_ORDER.index(name)] for name in names],
        step="post",
    )
    most = max(course.num_bytes) / GIB
    if memory_bytes and memory_bytes / GIB < 2 * most:
        axes.axhline(memory_bytes / GIB, linestyle="--", color="black", linewidth=1)
    for name, position in course.phases:
        if name != "end":
            axes.axvline(position, color="black", linewidth=0.5, alpha=0.5)
            axes.annotate(name, (position, most * 1.04), fontsize=9)
    axes.set(xlabel="allocations and frees of one step", ylabel="GiB", xlim=(0, len(course.num_bytes) - 1))
    axes.set_ylim(0, max(most * 1.12, 1e-9))
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    save(figure, files)
