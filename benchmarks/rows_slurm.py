"""The rows of the speed table that need Slurm: a private cluster on this machine."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

from tests.cluster import Cluster, missing_tools

from benchmarks.figures import Figure, Row, at_most_of_theirs
from benchmarks.meter import BenchmarkError, Meter, Sample, cpus, program, tool, walls

GRANT_SECONDS = 60.0
NAME_AND_HOLD = 'env -0 > "$0.part" && mv "$0.part" "$0" && exec cat'  # cat ends with its standard input


@contextlib.contextmanager
def allocation(meter: Meter, *, num_nodes: int) -> Iterator[dict[str, str]]:
    """Start a cluster and hold all of its nodes; yield the environment of a shell inside the allocation."""
    if reason := missing_tools():
        raise BenchmarkError(reason)
    with Cluster(num_nodes=num_nodes) as cluster:
        path = os.path.join(meter.marks(), "environ")
        holder = cluster.popen(
            "salloc", f"--nodes={num_nodes}", "--partition=standard-g", "sh", "-c", NAME_AND_HOLD, path,
            stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**meter.environ, "SLURM_CONF": str(cluster.conf)},
        )  # fmt: skip
        try:
            yield _environ(holder, path)
        finally:
            holder.communicate(timeout=GRANT_SECONDS)


def _environ(holder: subprocess.Popen[str], path: str) -> dict[str, str]:
    deadline = time.monotonic() + GRANT_SECONDS
    while not os.path.exists(path):
        if holder.poll() is not None or time.monotonic() > deadline:
            raise BenchmarkError("salloc has not granted the nodes")
        time.sleep(0.02)
    with open(path) as file:
        return dict(entry.split("=", 1) for entry in file.read().split("\0") if entry)


def nodes(meter: Meter) -> Row:
    """Start 2 nodes with 4 ranks each, until rank 0 has done its first all-reduce."""
    with allocation(meter, num_nodes=2) as environ:

        def launch(*command: str) -> Sample:
            marks = meter.marks()
            return meter.run([*command, program("first_allreduce"), marks], marks=marks, environ=environ)

        def srun_torchrun() -> Sample:
            endpoint = f"127.0.5.1:{random.randint(20000, 30000)}"  # the first node's
            return launch(
                "srun", "--ntasks-per-node=1", tool("torchrun"), "--nnodes=2", "--nproc-per-node=4",
                "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={endpoint}",
            )  # fmt: skip

        ours, theirs, tasks = meter.interleave(
            partial(launch, tool("echelon"), "run", "-n", "4"),
            srun_torchrun,
            partial(launch, "srun", "--ntasks=8", "--ntasks-per-node=4", tool("echelon"), "exec", sys.executable),
        )
    beside, one_task = "srun + torchrun", "one srun task per rank"
    figures = [
        Figure(what="wall time", unit="s", ours=walls(ours), theirs=walls(theirs), beside=beside,
               target=at_most_of_theirs(0.28)),
        Figure(what="wall time", unit="s", ours=walls(ours), theirs=walls(tasks), beside=one_task),
    ]  # fmt: skip
    if meter.account.sees_daemons:
        figures += [
            Figure(what="CPU time", unit="s", ours=cpus(ours), theirs=cpus(theirs), beside=beside),
            Figure(what="CPU time", unit="s", ours=cpus(ours), theirs=cpus(tasks), beside=one_task),
        ]
    return Row(title="2 Slurm nodes × 4 ranks, start to first all-reduce", figures=tuple(figures))


def plain(meter: Meter) -> Row:
    """Start 64 ranks without torch on 8 nodes, until the last one runs."""
    with allocation(meter, num_nodes=8) as environ:

        def launch(*command: str) -> Sample:
            marks = meter.marks()
            sample = meter.run([*command, program("running"), marks], marks=marks, environ=environ)
            if len(os.listdir(marks)) != 64:
                raise BenchmarkError(f"{len(os.listdir(marks))} of 64 ranks ran under {command[0]}")
            return sample

        ours, theirs = meter.interleave(
            partial(launch, tool("echelon"), "run", "-n", "8"),
            partial(launch, "srun", "--ntasks=64", "--ntasks-per-node=8", sys.executable),
        )
    figures = [
        Figure(what="wall time", unit="s", ours=walls(ours), theirs=walls(theirs), beside="bare srun",
               target=at_most_of_theirs(1.5)),
    ]  # fmt: skip
    if meter.account.sees_daemons:
        figures.append(Figure(what="CPU time", unit="s", ours=cpus(ours), theirs=cpus(theirs), beside="bare srun"))
    return Row(title="64 plain-Python ranks on 8 Slurm nodes, until the last one runs", figures=tuple(figures))
