"""Measure `echelon watch` and `echelon report` on a generated run of a day with 128 nodes and 1,024 devices.

python -m benchmarks.views
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.monitor.watch import fleet

from echelon.monitor.watch.live import Live
from echelon.monitor.watch.screen import View, draw

NUM_NODES, RANKS_PER_NODE, DAY = 128, 8, 86400.0
NAMES = (
    "step_seconds", "data_seconds", "backward_seconds", "communication_seconds", "optimizer_seconds", "save_seconds",
    "samples", "loss", "peak_allocated_bytes", "peak_reserved_bytes", "peak_resident_bytes", "cpu_seconds",
)  # fmt: skip
ROUNDS = 7


def main() -> None:
    """Write the run, and print what each view of it takes."""
    with tempfile.TemporaryDirectory() as folder:
        path = fleet.write(Path(folder) / "run", num_nodes=NUM_NODES, ranks_per_node=RANKS_PER_NODE, samples=1)
        size = _write_day(path / "samples.jsonl")
        print(f"samples.jsonl of a day: {size / 1e6:.1f} MB, {size / DAY / NUM_NODES:.1f} bytes/s for each node")
        for words in (["watch", "--once", "run"], ["report", "run"]):
            line = [sys.executable, "-m", "echelon", *words]
            _measure(f"echelon {' '.join(words)}", partial(subprocess.run, line, cwd=folder, stdout=subprocess.DEVNULL))
        state = Live("run", str(path)).look()
        for with_colour in (False, True):
            _measure(f"a frame, colour {with_colour}", partial(draw, state, View(), 80, 24, with_colour=with_colour))
        before = draw(state, View(), 80, 24, with_colour=True)
        state.steps, state.now, state.loss = state.steps + 10, state.now + 1, 0.123
        state.losses, state.rates = [*state.losses[1:], 0.123], [*state.rates[1:], 9.0]
        after = draw(state, View(), 80, 24, with_colour=True)
        changed = sum(len(line.encode()) + 10 for line, old in zip(after, before, strict=True) if line != old)
        print(f"to the terminal in a second in which steps, loss and speed change: {changed} bytes")


def _write_day(path: Path) -> int:
    """Write the samples of a day as often as a supervisor does; return the size."""
    chance = random.Random(0)
    ranks = NUM_NODES * RANKS_PER_NODE
    age, number = 1.0, 0
    with path.open("w") as file:
        file.write('{"format": 1}\n')
        while age < DAY:
            line = {"time": round(fleet.BEGAN + age, 1), "attempt": 0, "ranks": ranks, "steps": int(age * 10)}
            line.update(loss=1 / age, samples=int(age * 1000))
            if number % 16 == 0:
                line["measures"] = {
                    name: [round(age * chance.uniform(0.1, 0.11), 3) for _ in range(ranks)] for name in NAMES
                }
            file.write(json.dumps(line) + "\n")
            age, number = age + min(30.0, max(1.0, age / 200)), number + 1
    return path.stat().st_size


def _measure(what: str, act: Callable[[], object]) -> None:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    shown = [f"{seconds * 1e3:.0f}" for seconds in (statistics.median(times), min(times), max(times))]
    print(f"{what}: {shown[0]} ms ({shown[1]}–{shown[2]})")


if __name__ == "__main__":
    main()
