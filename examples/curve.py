"""Draw the losses that gpt.py has written, of one or several trainings in one picture.

Usage: python curve.py one_rank/loss.csv two_ranks/loss.csv curves.png
"""

import csv
import math
import sys
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")  # draws without a screen
from matplotlib import pyplot

GREY = "#616e7c"
COLORS = ("#f0b429", "#2251cc", "#127a4b", "#b3261e")
WIDTHS = (6, 1.6, 1.2, 1.2)  # the first lies below the others, and is still seen


def read(table: Path) -> list[float]:
    """Return the loss of each step."""
    with table.open(newline="") as file:
        return [float(row["loss_nats_per_byte"]) for row in csv.DictReader(file)]


def smooth(losses: list[float], reach: int = 5) -> list[float]:
    """Return the mean of each step and its neighbours, with fewer of them near the ends."""
    reaches = [min(step, reach, len(losses) - 1 - step) for step in range(len(losses))]
    return [fmean(losses[step - near : step + near + 1]) for step, near in enumerate(reaches)]


def draw(curves: dict[str, list[float]], path: Path) -> None:
    """Draw each training's loss, smoothed, and the loss of guessing."""
    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=160, layout="constrained")
    longest = max(map(len, curves.values()))
    axes.axhline(math.log(256), color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), alpha=0.7)
    guess = f"every byte equally likely: {math.log(256):.2f}"
    axes.text(longest, math.log(256) + 0.07, guess, ha="right", color=GREY, fontsize=9)
    for (name, losses), color, width in zip(curves.items(), COLORS, WIDTHS, strict=False):
        smoothed = smooth(losses)
        label = f"{name}: {smoothed[-1]:.4f} at the end"
        axes.plot(range(1, len(losses) + 1), smoothed, color=color, linewidth=width, label=label)
    axes.set(xlabel="training step", ylabel="loss (nats per byte)", xlim=(0, longest), ylim=(0, 6.2))
    axes.set_title("A small GPT learns to read Python", loc="left", weight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.legend(frameon=False, loc="lower left")
    figure.savefig(path)


def main(tables: list[Path], picture: Path) -> None:
    """Draw the tables' losses; of two, say how far they are apart."""
    curves = {table.parent.name.replace("_", " "): read(table) for table in tables}
    draw(curves, picture)
    if len(curves) == 2:
        one, other = curves.values()
        apart = max(abs(a - b) for a, b in zip(one, other, strict=True))
        print(f"The losses of {' and '.join(curves)} differ by at most {apart:.4f} in {len(one)} steps: {picture}")


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:-1]], Path(sys.argv[-1]))
