"""Measure how long files take to the disks of many nodes: `python -m benchmarks.staging`, from the repository root.

The nodes are processes of this machine, with the code of real ones, and the network is loopback. The folders lie in
memory, or where ECHELON_STAGE says. Beside us each node copies the files from the shared disk by itself, as the guides
of the centres show it (`cp -r`), all nodes at once. A real shared disk is slower for many readers; this one is not, so
the figure beside us flatters it. Example:

    python -m benchmarks.staging --nodes 128 --megabytes 32 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.figures import Figure, Row, Spread, Target, circumstances, markdown
from echelon.launch import package, staged_source, staging
from echelon.node import staging as on_node
from echelon.spec import Staged

SECRET = bytes(32)
NUM_FILES = 64


class Nodes:
    """Stagers of several nodes on this machine, each with a folder of its own."""

    def __init__(self, folder: Path, item: Staged, num_nodes: int, places: dict[int, Path] | None = None) -> None:
        self.item = item
        self.root = staging.StagingRoot(SECRET, num_nodes, lambda _line: None)
        self.copies = [(places or {}).get(number, folder / f"node-{number}") / item.key for number in range(num_nodes)]
        self.processes = []
        package.write(str(folder / "node.pyz"))
        address = ("127.0.0.1", self.root.listener.getsockname()[1])
        for number, copy in enumerate(self.copies):
            order = folder / f"order-{number}"
            order.mkdir(exist_ok=True)
            on_node.write(str(order), on_node.StageOrder([address], str(copy.parent), "run", {item.key: ""}), SECRET)
            words = [sys.executable, "-I", "-S", str(folder / "node.pyz"), "stage", str(order), str(number)]
            self.processes.append(subprocess.Popen(words, env={**os.environ, "ECHELON_POOL": str(folder)}))

    def stage(self) -> str:
        """Bring the source to all nodes; return how it went."""
        self.root.gather([self.item])
        return self.root.stage(self.item, staged_source.read(self.item.source, self.item.target))

    def kill(self) -> None:
        """End the processes, which leaves the copies, as a pool does."""
        for process in self.processes:
            process.kill()
            process.wait()

    def end(self) -> None:
        """End the run; the nodes remove their copies."""
        self.root.end()
        for process in self.processes:
            process.wait(20)


def main() -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.staging", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=128)
    parser.add_argument("--megabytes", type=int, default=32, help="what each node gets")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    rounds = [_round(asked.nodes, asked.megabytes) for _ in range(asked.rounds)]
    first, again, copied = (Spread(values) for values in zip(*rounds, strict=True))
    what = f"{asked.megabytes} MB to {asked.nodes} nodes"
    rows = [
        Row(
            title=what,
            figures=(
                Figure(what="from the first stager to the last file", unit="s", ours=first, theirs=copied,
                       beside="cp -r on each node", target=Target(limit=60.0, is_ratio=False)),
                Figure(what="again, with nothing changed", unit="s", ours=again,
                       target=Target(limit=1.0, is_ratio=False)),
            ),
        )
    ]  # fmt: skip
    print(f"{circumstances('staging', asked.rounds)}\n\n{markdown(rows)}")
    return 0


def _round(num_nodes: int, megabytes: int) -> tuple[float, float, float]:
    """Return the seconds of staging, of staging again, and of copies by each node."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("ECHELON_STAGE", "/dev/shm")) as name:
        folder = Path(name)
        source = folder / "data"
        source.mkdir()
        for number in range(NUM_FILES):
            (source / f"{number}.bin").write_bytes(os.urandom((megabytes << 20) // NUM_FILES))
        item = Staged(source=str(source), folder="/nodes/key", target="/nodes/key/files/data")
        seconds = []
        for _ in range(2):  # the second time, all is there
            nodes = Nodes(folder, item, num_nodes)
            nodes.root.gather([item])
            began = time.monotonic()
            nodes.stage()
            seconds.append(time.monotonic() - began)
            nodes.kill()
        for copy in nodes.copies:
            shutil.rmtree(copy.parent)
        began = time.monotonic()
        copies = [subprocess.Popen(["cp", "-r", source, folder / f"copy-{number}"]) for number in range(num_nodes)]
        for process in copies:
            process.wait()
        return seconds[0], seconds[1], time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
