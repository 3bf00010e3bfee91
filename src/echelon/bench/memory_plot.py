"""Draw what fills a device's memory over one step of a training."""

from __future__ import annotations

from collections.abc import Sequence

from echelon.bench import plot
from echelon.estimate import timeline
from echelon.estimate.log import EventLog
from echelon.estimate.verdict import NAMES
from echelon.units import GIB

_ORDER = ("parameter", "state", "gradient", "buffer", "input", "activation", "temporary")
_COLOURS = ("#3b6ea5", "#7fa7d1", "#e0a458", "#b8b8b8", "#8c8c8c", "#5b9e6f", "#c96a5b")


def draw(log: EventLog, memory_bytes: int, files: Sequence[str]) -> None:
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
    plot.save(figure, files)
