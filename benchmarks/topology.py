"""Measure how long the topology of a node takes: `python -m benchmarks.topology`, from the repository root.

The trees of the tests are read, whole nodes with up to 288 hardware threads, and this machine itself; a figure is the
median of all readings with the least and the greatest value. Real sysfs answers slower than files in a page cache,
so the number of files that are opened stands beside the time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.topology import trees

from echelon.topology import describe, discover, files

if TYPE_CHECKING:
    from collections.abc import Callable

MACHINES = (trees.lumi_g, trees.dgx_a100, trees.gh200, trees.v100, trees.workstation, trees.vm)
MOST_MILLISECONDS = 50


def main() -> int:
    """Measure every tree and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.topology", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50, metavar="N", help="how often each is read; 50 by default")
    rounds = max(1, parser.parse_args().rounds)
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, {rounds} readings")
    print("| node | threads | files | read, ms | cores of each device, ms |\n|---|---|---|---|---|")
    is_fast = True
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        roots = {machine.__name__: str(machine(Path(folder) / machine.__name__)) for machine in MACHINES}
        for name, root in {**roots, "this machine": "/"}.items():
            node = discover.read(root)
            reading = timed(lambda root=root: discover.read(root), rounds)  # type: ignore[misc]
            assigning = timed(lambda node=node: describe.near_cores(node), rounds)  # type: ignore[misc]
            print(f"| {name} | {len(node.cpus)} | {num_files(root)} | {shown(reading)} | {shown(assigning)} |")
            is_fast = is_fast and statistics.median(reading) <= MOST_MILLISECONDS
    return 0 if is_fast else 1


def timed(act: Callable[[], object], rounds: int) -> list[float]:
    """Return the milliseconds of each round."""
    act()
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        act()
        taken.append((time.perf_counter() - start) * 1000)
    return taken


def shown(taken: list[float]) -> str:
    """Write the median with the least and the greatest."""
    return f"{statistics.median(taken):.1f} ({min(taken):.1f} to {max(taken):.1f})"


def num_files(root: str) -> int:
    """Count the files that one reading opens or tries to open."""
    counted = 0
    original = files.text_or_none

    def count(path: str) -> str | None:
        nonlocal counted
        counted += 1
        return original(path)

    files.text_or_none = count
    try:
        discover.read(root)
    finally:
        files.text_or_none = original
    return counted


if __name__ == "__main__":
    sys.exit(main())
