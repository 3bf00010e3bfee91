"""Draw speedup and efficiency beside the ideal, with matplotlib if it is installed, as SVG and as PNG."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from echelon.bench.efficiency import ENOUGH, Range, Row
from echelon.bench.question import Question
from echelon.errors import UsageError

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
