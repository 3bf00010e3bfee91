"""Measure zero-change scaling beside what one writes by hand: `python -m benchmarks.scale`, from the repository root.

Both programs time their own steps in the same way, after a warm-up; they are run in turns, and each turn begins with
the other one. A figure is the median with the least and the greatest value. Rows that need a GPU, or an option that
this echelon does not have, are skipped and say so. Examples:

    python -m benchmarks.scale --quick --only hooks
    python -m benchmarks.scale --write             updates the section in docs/performance.md
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from benchmarks import account
from benchmarks.figures import Figure, Row, Spread, at_most_of_theirs, circumstances, markdown
from benchmarks.meter import BenchmarkError, Meter, clean_environ, program, tool

PAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs", "performance.md")
HEADING = "## How fast a scaled script trains"
BEGIN, END = "<!-- printed by benchmarks/scale.py -->", "<!-- until here -->"
NEXT_HEADING = "## How it is measured"
MICROSECONDS = 1e3  # in a millisecond
TOKENS = 16 * 1024  # of a step of programs/scale_gpt.py

OF_DDP = at_most_of_theirs(1.02)  # at least 0.98 of its throughput
OF_DDP_EXACT = at_most_of_theirs(1.10)
OF_PLAIN = at_most_of_theirs(1.01)  # 1 % of a step; at least 0.99 of its throughput
OF_PLAIN_SHARDED = at_most_of_theirs(1.02)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """How long a step took in one run, in milliseconds."""

    mean: float
    median: float


class Skipped(Exception):
    """A row that cannot be measured here, with the reason."""


def main() -> int:
    """Measure the rows asked for and print them."""
    options = _options()
    with account.opened() as counted, tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        num_rounds = 1 if options.quick else options.rounds
        meter = Meter(account=counted, folder=folder, num_rounds=num_rounds, num_calls=1, environ=clean_environ())
        rows = [_measure(name, meter) for name in options.only or ROWS]
    text = f"{circumstances('scale', num_rounds)}\n\n{markdown(rows)}"
    print(json.dumps([asdict(row) for row in rows], indent=1) if options.json else text)
    if options.write:
        write(PAGE, text)
    return 0 if all(figure.is_reached for row in rows for figure in row.figures) else 1


def _measure(name: str, meter: Meter) -> Row:
    """Measure one row, or say in it why it was skipped."""
    print(f"measuring {name} …", file=sys.stderr)
    try:
        return ROWS[name](meter)
    except Skipped as reason:
        return Row(title=name, figures=(), notes=(f"skipped: {reason}",))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=ROWS, metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how many pairs are run; 5 by default")
    parser.add_argument("--quick", action="store_true", help="one pair only: to see that all of it works")
    parser.add_argument("--json", action="store_true", help="print every single value")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    return parser.parse_args()


def compute(meter: Meter) -> Row:
    """Train convolutions on two ranks: what is computed outweighs what is exchanged."""
    return _beside_ddp(meter, "compute", "2 ranks, much to compute (convolutions)")


def wide(meter: Meter) -> Row:
    """Train wide layers on two ranks: 21 MB are exchanged in each step."""
    return _beside_ddp(meter, "wide", "2 ranks, much to exchange (21 MB of parameters)")


def exact(meter: Meter) -> Row:
    """Train with the same bits on any number of ranks, beside DDP that computes as many parts of a batch."""
    ours, theirs = _in_turns(
        meter,
        partial(_run, meter, [*_echelon(2, "data"), "--exact", "4", program("scale_plain"), "compute"]),
        partial(_run, meter, [*_echelon(2, "off"), program("scale_ddp"), "compute", "2"]),
    )
    figure = Figure(
        what="one step, mean", unit="ms", ours=_means(ours), theirs=_means(theirs),
        beside="DDP by hand, 2 micro-batches", target=OF_DDP_EXACT,
    )  # fmt: skip
    return Row(title="2 ranks with `--exact 4` (convolutions)", figures=(figure,), notes=(_throughput(ours, theirs),))


def _beside_ddp(meter: Meter, task: str, title: str) -> Row:
    ours, theirs = _in_turns(
        meter,
        partial(_run, meter, [*_echelon(2, "data"), program("scale_plain"), task]),
        partial(_run, meter, [*_echelon(2, "off"), program("scale_ddp"), task]),
    )
    figure = Figure(
        what="one step, mean", unit="ms", ours=_means(ours), theirs=_means(theirs), beside="DDP by hand", target=OF_DDP
    )
    return Row(title=title, figures=(figure,), notes=(_throughput(ours, theirs),))


def hooks(meter: Meter) -> Row:
    """Train on one rank beside plain Python, in steps so short that what is done around them shows."""
    ours, theirs = _in_turns(
        meter,
        partial(_run, meter, [*_echelon(1, "data"), program("scale_plain"), "short"]),
        partial(_run, meter, [sys.executable, program("scale_plain"), "short"]),
    )
    medians = [Spread(tuple(run.median for run in runs)) for runs in (ours, theirs)]
    added = Spread(tuple((our.median - their.median) * MICROSECONDS for our, their in zip(ours, theirs, strict=True)))
    return Row(
        title="1 rank, which is left without hooks, a step of about 5 ms",
        figures=(
            Figure(
                what="one step, median", unit="ms", ours=medians[0], theirs=medians[1], beside="plain Python",
                target=OF_PLAIN,
            ),
            Figure(what="what the hooks add to it", unit="µs", ours=added),
        ),
    )  # fmt: skip


def later_short(meter: Meter) -> Row:
    """Compare later steps with one device where a step is so short that few are signed."""
    return _beside_unchecked(meter, "short", "2 ranks, later steps compared, a step of few ms")


def later_compute(meter: Meter) -> Row:
    """Compare later steps with one device where each is signed."""
    return _beside_unchecked(meter, "compute", "2 ranks, later steps compared (convolutions)")


def _beside_unchecked(meter: Meter, task: str, title: str) -> Row:
    """The median step shows what signatures cost; the mean has the spots 101 and 504 too, where they are timed."""
    ours, theirs = _in_turns(
        meter,
        partial(_run, meter, [*_echelon(2, "data"), program("scale_plain"), task]),
        partial(_run, meter, [*_echelon(2, "data"), "--no-check", program("scale_plain"), task]),
    )
    medians = [Spread(tuple(run.median for run in runs)) for runs in (ours, theirs)]
    return Row(
        title=title,
        figures=(
            Figure(
                what="one step, median", unit="ms", ours=medians[0], theirs=medians[1], beside="`--no-check`",
                target=OF_PLAIN,
            ),
            Figure(
                what="one step, mean", unit="ms", ours=_means(ours), theirs=_means(theirs), beside="`--no-check`",
                target=OF_DDP,
            ),
        ),
    )  # fmt: skip


def gpt(meter: Meter) -> Row:
    """Train a GPT on one GPU beside plain Python."""
    return _gpt(meter, "data", "1 GPU, GPT of 124 M parameters, bf16, compiled")


def fsdp(meter: Meter) -> Row:
    """Train the same GPT on one GPU with its model sharded, over one device."""
    return _gpt(meter, "fsdp", "1 GPU, the same GPT with --scale fsdp")


def _gpt(meter: Meter, scale: str, title: str) -> Row:
    _require_option(scale)
    _require_gpu()
    ours, theirs = _in_turns(
        meter,
        partial(_run, meter, [*_echelon(1, scale), program("scale_gpt")]),
        partial(_run, meter, [sys.executable, program("scale_gpt")]),
    )
    target = OF_PLAIN_SHARDED if scale == "fsdp" else OF_PLAIN
    figure = Figure(
        what="one step, mean", unit="ms", ours=_means(ours), theirs=_means(theirs), beside="plain Python", target=target
    )
    rates = [TOKENS / _means(runs).median * 1e3 for runs in (ours, theirs)]
    notes = (f"{rates[0]:.0f} tokens/s, beside it {rates[1]:.0f}",)
    return Row(title=title, figures=(figure,), notes=notes)


ROWS: dict[str, Callable[[Meter], Row]] = {
    "compute": compute, "wide": wide, "exact": exact, "hooks": hooks, "gpt": gpt, "fsdp": fsdp,
    "later-short": later_short, "later-compute": later_compute,
}  # fmt: skip


def _require_gpu() -> None:
    """Ask in a process of its own: this one imports no torch, and opens no device."""
    code = "import torch; print(torch.cuda.is_available())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout
    if said.split()[-1:] != ["True"]:
        raise Skipped("no GPU here")


def _require_option(scale: str) -> None:
    command = [*_echelon(1, scale), "--dry-run", program("scale_gpt"), "."]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise Skipped(f"`--scale {scale}` is refused: {said[0] if said else done.returncode}")


def _echelon(num_ranks: int, scale: str) -> list[str]:
    return [tool("echelon"), "run", "-n", str(num_ranks), "--scale", scale]


def _in_turns(
    meter: Meter, ours: Callable[[], Steps], theirs: Callable[[], Steps]
) -> tuple[list[Steps], list[Steps]]:  # fmt: skip
    """Run both as often as asked; whoever was second begins the next turn."""
    by_us, by_them = [], []
    for turn in range(meter.num_rounds):
        if turn % 2:
            by_them.append(theirs())
            by_us.append(ours())
        else:
            by_us.append(ours())
            by_them.append(theirs())
    return by_us, by_them


def _run(meter: Meter, argv: Sequence[str]) -> Steps:
    """Run one program to its end and read what it has written of its steps."""
    marks = meter.marks()
    meter.run([*argv, marks])
    with open(os.path.join(marks, "steps")) as file:
        mean, median = file.read().split()
    return Steps(mean=float(mean), median=float(median))


def _means(runs: Sequence[Steps]) -> Spread:
    return Spread(tuple(run.mean for run in runs))


def _throughput(ours: Sequence[Steps], theirs: Sequence[Steps]) -> str:
    ratio = _means(theirs).over(_means(ours))  # steps/s are one over the time of a step
    return f"throughput: {ratio.median:.3f} ({min(ratio.values):.3f}–{max(ratio.values):.3f}) of that beside it"


def write(page: str, text: str) -> None:
    """Put the section into its place; where the page has none yet, before the one on how things are measured."""
    with open(page, encoding="utf-8") as file:
        content = file.read()
    if BEGIN not in content:
        before, heading, after = content.partition(NEXT_HEADING)
        if not heading:
            raise BenchmarkError(f"{page} lacks {BEGIN}, and {NEXT_HEADING!r} before which it would stand")
        content = f"{before}{HEADING}\n\n{BEGIN}\n{END}\n\n{heading}{after}"
    before, _, rest = content.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise BenchmarkError(f"{page} lacks {END} after {BEGIN}: put it back, on a line of its own")
    with open(page, "w", encoding="utf-8") as file:
        file.write(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    sys.exit(main())
