"""Measure how ranks on CPUs gather spread weights beside gloo's own all-gather: `python -m benchmarks.all_gather`.

Both run in the same processes, in turns, on what fully_shard would gather: rows of one tensor, of which each rank has
its own. A figure is the median over the rounds with the least and the greatest value. Example:

    python -m benchmarks.all_gather --ranks 2 8 --kib 32 256
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.figures import Figure, Row, Spread, at_most_of_theirs, markdown
from benchmarks.meter import clean_environ, tool

NO_SLOWER = at_most_of_theirs(1.0)
MOST_TURNS, MOST_KIB = 200, 40_000  # of one round


def main() -> int:
    """Measure each number of ranks and print the table."""
    if sys.argv[1:2] == ["--rank"]:
        _be_rank(sys.argv[2], int(sys.argv[3]), [int(one) for one in sys.argv[4:]])
        return 0
    options = _options()
    rows = [row for num_ranks in options.ranks for row in _measure(num_ranks, options.kib, options.rounds)]
    print(markdown(rows))
    return 0 if all(figure.is_reached for row in rows for figure in row.figures) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.all_gather",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--ranks", nargs="+", type=int, default=[2, 3, 4, 8], metavar="N", help="2, 3, 4 and 8 by default"
    )
    parser.add_argument("--kib", nargs="+", type=int, default=[1, 32, 256, 4096], metavar="K", help="of each rank")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="5 by default")
    return parser.parse_args()


def _measure(num_ranks: int, sizes: list[int], num_rounds: int) -> list[Row]:
    print(f"measuring {num_ranks} ranks …", file=sys.stderr)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environ = {**clean_environ(), "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        path = os.path.join(folder, "found")
        start = [tool("echelon"), "run", "-n", str(num_ranks), "--scale", "off", os.path.abspath(__file__)]
        command = [*start, "--rank", path, str(num_rounds), *map(str, sizes)]
        subprocess.run(command, cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    return [
        Row(
            title=f"{num_ranks} ranks, {size} KiB of each",
            figures=(
                Figure(
                    what="one all-gather",
                    unit="µs",
                    ours=Spread(tuple(found[str(size)]["ours"])),
                    theirs=Spread(tuple(found[str(size)]["theirs"])),
                    beside="gloo",
                    target=NO_SLOWER,
                ),
            ),
        )
        for size in sizes
    ]


# What follows runs in the ranks


def _be_rank(path: str, num_rounds: int, sizes: list[int]) -> None:
    """Gather in turns, see that all is there, and let rank 0 write how long each took."""
    import torch
    import torch.distributed as dist

    from echelon.train.wire import gather as ours
    from echelon.train.wire import world

    torch.set_num_threads(1)
    world.join(world.read(os.environ))  # as echelon makes the group
    theirs = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # what fully_shard calls
    group, rank, num_ranks = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    gathers = {
        "ours": lambda rows: ours.gather(rows, group),
        "theirs": lambda rows: theirs(rows.view(-1), rows[rank]),
    }
    found: dict[int, dict[str, list[float]]] = {}
    for size in sizes:
        found[size] = {who: [] for who in gathers}
        number = max(5, min(MOST_TURNS, MOST_KIB // (size * num_ranks)))
        for turn in range(num_rounds):
            for who in reversed(gathers) if turn % 2 else gathers:
                rows = torch.full((num_ranks, size * 256), -1.0)
                rows[rank] = rank
                gathers[who](rows)
                assert torch.equal(rows, torch.arange(num_ranks).float()[:, None].expand_as(rows)), who
                dist.barrier()
                seconds = []
                for _ in range(number):
                    began = time.perf_counter()
                    gathers[who](rows)
                    seconds.append(time.perf_counter() - began)
                found[size][who].append(statistics.mean(seconds) * 1e6)
    if rank == 0:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(found, file)
    dist.barrier()


if __name__ == "__main__":
    sys.exit(main())
