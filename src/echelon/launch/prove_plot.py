"""Plot the losses of compared trainings, with matplotlib if it is installed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from echelon.errors import UsageError

Rows = Sequence[Mapping[str, Any]]


def refuse_what_cannot_be_drawn(path: str) -> None:
    """Raise UsageError before any run if a plot could not be written."""
    if not path.endswith(".png"):
        raise UsageError(f"--plot {path or repr('')}: give the name of a PNG file", hint="--plot prove.png")
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise UsageError(f"--plot {path}: {folder} is not a folder that you can write", hint="--plot prove.png")
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed here", hint="pip install matplotlib")


def draw(result: Mapping[str, Any], path: str) -> None:
    """Plot the losses of one device and of several ranks as PNG, and their difference below."""
    from matplotlib.figure import Figure

    runs = [run for run in result["runs"] if run.get("steps")]
    figure = Figure(figsize=(8, 7), layout="constrained")
    losses, apart = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    if runs:
        numbers = [row["step"] for row in runs[0]["steps"]]
        one_rank = _values(runs[0]["steps"], "one")
        losses.plot(numbers, one_rank, color="black", linewidth=3, alpha=0.35, label="1 rank")
        apart.plot(numbers, _values(runs[0]["steps"], "bound"), color="black", alpha=0.35, label="rounding")
    for run in runs:
        label = f"{result['num_ranks']} ranks" + (f", {run['scale']}" if len(result["runs"]) > 1 else "")
        numbers = [row["step"] for row in run["steps"]]
        losses.plot(numbers, _values(run["steps"], "other"), linestyle="--", label=f"{label}: {run['verdict']}")
        differences = [max(value, 1e-12) for value in _values(run["steps"], "difference")]
        apart.plot(numbers, differences, marker=".", linestyle="", label=label)
    losses.set_ylabel("loss")
    apart.set(xlabel="step", ylabel="relative difference", yscale="log")
    losses.legend()
    apart.legend()
    figure.savefig(path, dpi=120)


def _values(rows: Rows, key: str) -> list[float]:
    return [float("nan") if row["loss"][key] is None else row["loss"][key] for row in rows]
