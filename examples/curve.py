"""Draw the losses that gpt.py has written.

Usage: python curve.py loss.csv
"""

import csv
import math
import sys
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("Agg")  # draws without a screen
from matplotlib import pyplot

GREY, YELLOW, BLUE = "#616e7c", "#f0b429", "#2251cc"


def smooth(losses: list[float], reach: int = 12) -> list[float]:
    """Return the mean of each step and its neighbours, with fewer of them near the ends."""
    reaches = [min(step, reach) for step in range(len(losses))]
    return [fmean(losses[step - near : step + near + 1]) for step, near in enumerate(reaches)]


def draw(losses: list[float], path: Path, *, caption: str = "", byte_entropy: float | None = None) -> None:
    """Draw every step's loss, the smoothed one, and what guessing would cost."""
    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=160, layout="constrained")
    guesses = {"every byte equally likely": math.log(256)}
    if byte_entropy is not None:
        guesses["knowing only how often each byte occurs"] = byte_entropy
    for guess, loss in guesses.items():
        axes.axhline(loss, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), alpha=0.7)
        axes.text(len(losses), loss + 0.07, f"{guess}: {loss:.2f}", ha="right", color=GREY, fontsize=9)

    steps, smoothed = range(1, len(losses) + 1), smooth(losses)
    axes.plot(steps, losses, color=YELLOW, linewidth=1, alpha=0.6, label="each step")
    axes.plot(steps, smoothed, color=BLUE, linewidth=2.2, label="smoothed")
    last = f" {smoothed[-1]:.2f}"
    axes.text(len(losses), smoothed[-1], last, va="center", color=BLUE, weight="bold")
    axes.set(xlabel="training step", ylabel="loss (nats per byte)", xlim=(0, len(losses)), ylim=(0, 6.2))
    axes.set_title("A small GPT learns to read Python", loc="left", weight="bold", pad=24)
    axes.text(0, 1.04, caption, transform=axes.transAxes, color=GREY, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.8)
    axes.legend(frameon=False, loc="lower left")
    figure.savefig(path)


if __name__ == "__main__":
    table = Path(sys.argv[1])
    with table.open(newline="") as file:
        draw([float(row["loss_nats_per_byte"]) for row in csv.DictReader(file)], table.with_suffix(".png"))
