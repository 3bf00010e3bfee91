"""The rows of the speed table that are about knowing the machine: plans, batch scripts, topology."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.topology import trees

from benchmarks.figures import Figure, Row, Spread, at_most
from benchmarks.meter import Meter, tool
from benchmarks.rows_here import walls
from echelon.topology import discover

NUM_READINGS = 20
TREES = (trees.lumi_g, trees.dgx_a100, trees.gh200)


def plans(meter: Meter) -> Row:
    """Plan a job, and write the batch script of one of 1,024 nodes."""
    script = os.path.join(meter.folder, "train.py")
    Path(script).write_text("print(1)\n")
    lumi = ("--machine", "lumi", "--time", "1h")
    plan, submit = meter.interleave(
        partial(meter.run, [tool("echelon"), "plan", *lumi, "--gpus", "16"]),
        partial(
            meter.run,
            [tool("echelon"), "submit", *lumi, "--nodes", "1024", "--account", "project_1", "--dry-run", script],
        ),
        num_rounds=meter.num_calls,
    )
    (python,) = meter.interleave(partial(meter.run, [sys.executable, "-c", "pass"]), num_rounds=meter.num_calls)
    beside = "`python -c pass`"
    return Row(
        title="plans",
        figures=(
            Figure(what="`echelon plan --gpus 16`", unit="s", ours=walls(plan), theirs=walls(python), beside=beside,
                   target=at_most(0.3)),
            Figure(what="`echelon submit --nodes 1024 --dry-run`", unit="s", ours=walls(submit), theirs=walls(python),
                   beside=beside, target=at_most(0.3)),
        ),
    )  # fmt: skip


def topology(meter: Meter) -> Row:
    """Read generated trees of whole nodes, and divide their cores; real sysfs answers slower than a page cache."""
    figures = []
    for tree in TREES:
        root = str(tree(Path(meter.folder) / tree.__name__))
        node = discover.read(root)
        what = f"{tree.__name__}, {len(node.cpus)} hardware threads: read"
        figures.append(Figure(what=what, unit="ms", ours=_timed(partial(discover.read, root)), target=at_most(50)))
        figures.append(
            Figure(what="… and its cores divided", unit="ms", ours=_timed(partial(discover.near_cores, node)))
        )
    figures.append(
        Figure(what="this machine: read", unit="ms", ours=_timed(partial(discover.read, "/")), target=at_most(50))
    )
    return Row(title="topology of a node", figures=tuple(figures), notes=(f"{NUM_READINGS} readings each",))


def _timed(act: Callable[[], object]) -> Spread:
    """Return the milliseconds of each reading, after one that is not counted."""
    taken = []
    for _ in range(NUM_READINGS + 1):
        start = time.perf_counter()
        act()
        taken.append((time.perf_counter() - start) * 1000)
    return Spread(tuple(taken[1:]))
