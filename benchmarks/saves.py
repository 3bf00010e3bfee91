"""Measure what saves cost a training: `python -m benchmarks.saves`, from the repository root.

Three figures. How long a save of 1 GB stops the training, beside torch.save(). How much longer steps take on average
with states in the memory of the node, and with a checkpoint on the disk every minute, beside the same training that
saves nothing; all is counted, also the threads that write. Examples:

    python -m benchmarks.saves --rounds 3
    python -m benchmarks.saves --only stop memory
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from benchmarks.figures import Figure, Row, Spread, at_most_of_theirs, circumstances, markdown
from benchmarks.meter import PROGRAMS, BenchmarkError, clean_environ
from echelon.orders.checkpoint import MEMORY

NUM_RANKS, BATCH = 2, 512
KINDS = ("stop", "memory", "disk")
STEPS = {"memory": 120, "disk": 600}
"""The steps of a training: one with a checkpoint every minute must take several minutes."""


def main() -> int:
    """Measure, and print the table."""
    options = _options()
    rows = [_ROWS[kind](options.rounds) for kind in KINDS if kind in options.only]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        print(f"{circumstances('saves', options.rounds)}\n\n{markdown(rows)}")
    return 0 if all(figure.is_reached for row in rows for figure in row.figures) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.saves", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured, in turns")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, help="the figures to measure")
    parser.add_argument("--json", action="store_true", help="print the values of all rounds")
    return parser.parse_args()


def _stop(num_rounds: int) -> Row:
    shown = _shown([os.path.join(PROGRAMS, "saves_stop.py"), str(num_rounds), "cpu"], {})
    pairs = [(float(ours), float(theirs)) for ours, theirs in re.findall(r"echelon ([\d.]+) torch ([\d.]+)", shown)]
    ours, theirs = (Spread(values) for values in zip(*pairs, strict=True))
    figure = Figure(
        what="the training stands still", unit="s", ours=ours, theirs=theirs, beside="torch.save()",
        target=at_most_of_theirs(0.1),
    )  # fmt: skip
    return Row(title="a save of 1 GB", figures=(figure,))


def _memory(num_rounds: int) -> Row:
    saved = (["--checkpoint-every", "1h"], {})
    return _slower("states in memory, as often as they take 2 %", "memory", saved, 1.05, num_rounds)


def _disk(num_rounds: int) -> Row:
    saved = (["--checkpoint-every", "60s"], {MEMORY: ""})
    return _slower("a checkpoint on the disk every minute", "disk", saved, 1.01, num_rounds)


def _slower(
    title: str, kind: str, saved: tuple[Sequence[str], Mapping[str, str]], limit: float, num_rounds: int
) -> Row:
    """Compare a training that is saved with one whose only difference is that nothing is saved."""
    ours, theirs = [], []
    for number in range(num_rounds):
        print(f"{kind}, round {number + 1} of {num_rounds} …", file=sys.stderr)
        ours.append(_step_seconds(*saved, STEPS[kind]))
        theirs.append(_step_seconds(["--checkpoint-every", "1h"], {MEMORY: ""}, STEPS[kind]))
    figure = Figure(
        what="a step, on average", unit="s", ours=Spread(tuple(ours)), theirs=Spread(tuple(theirs)),
        beside="without saves", target=at_most_of_theirs(limit),
    )  # fmt: skip
    return Row(title=title, figures=(figure,))


def _step_seconds(options: Sequence[str], more: Mapping[str, str], num_steps: int) -> float:
    line = ["-m", "echelon", "run", "-n", str(NUM_RANKS), "--scale", "data", "--no-check", *options]
    program = [os.path.join(PROGRAMS, "saves_train.py"), str(num_steps), str(BATCH), "cpu"]
    found = re.search(r"seconds ([\d.]+)", _shown([*line, *program], more))
    if found is None:
        raise BenchmarkError("the training printed no time")
    return float(found.group(1))


def _shown(words: Sequence[str], more: Mapping[str, str]) -> str:
    environ = {**clean_environ(), "OMP_NUM_THREADS": "1", **more}
    with tempfile.TemporaryDirectory(prefix="saves-") as folder:
        done = subprocess.run([sys.executable, *words], cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"{words[0]} ended with exit code {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


_ROWS = {"stop": _stop, "memory": _memory, "disk": _disk}


if __name__ == "__main__":
    sys.exit(main())
