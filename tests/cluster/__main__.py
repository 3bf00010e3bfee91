"""Start a private Slurm cluster to play with: `python -m tests.cluster --nodes 4`."""

import argparse
import os
import signal
import sys
import time
from types import FrameType

from echelon.errors import UsageError
from echelon.machines.load import find

from . import Cluster, ClusterError


def main() -> int:
    """Run one cluster until Ctrl-C, or until the given command has ended."""
    options = _options()
    signal.signal(signal.SIGTERM, _interrupt)
    began = time.monotonic()
    try:
        with _cluster(options) as cluster:
            seconds = time.monotonic() - began
            print(f"{len(cluster.nodes)} nodes idle after {seconds:.1f} s", file=sys.stderr)
            if options.exec:
                return cluster.popen(*options.exec, start_new_session=False).wait()
            print(f"export SLURM_CONF={cluster.conf}", flush=True)
            print("paste the line above into another shell, then try: srun -N2 hostname", file=sys.stderr)
            print("Ctrl-C stops the cluster", file=sys.stderr)
            signal.pause()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _cluster(options: argparse.Namespace) -> Cluster:
    if options.like is None:
        return Cluster(num_nodes=options.nodes, task_plugin=options.task_plugin)
    machine = find(options.like, os.environ)
    return Cluster.like(machine, num_live_nodes=options.nodes, task_plugin=options.task_plugin)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster",
        description="Start a private Slurm cluster on this machine.",
        epilog="example: python -m tests.cluster --nodes 2 --exec srun -N2 hostname",
    )
    parser.add_argument(
        "--nodes", type=int, default=4, metavar="N", help="1 to 16, with --like of each kind; 4 by default"
    )
    parser.add_argument(
        "--task-plugin", default="task/none", metavar="PLUGIN", help="task/none (default) or task/affinity"
    )
    parser.add_argument("--like", metavar="MACHINE", help="with that machine's name, partitions, limits and nodes")
    parser.add_argument("--exec", nargs=argparse.REMAINDER, metavar="CMD", help="run one command in it, then stop")
    return parser.parse_args()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
