"""The faults that need Slurm: a lost rank or node, and a job that ends; on a private cluster of this machine."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster import Cluster, missing_tools

from benchmarks.disturbed import LIMIT_SECONDS, Pause, disturb, events, longest_pause, lose_rank, wait_for_step
from benchmarks.meter import PROGRAMS, BenchmarkError

PROGRAM = os.path.join(PROGRAMS, "survive_plain.py")
REQUEUE_SECONDS = 300.0  # Slurm waits two minutes before it starts a requeued job
_PLAIN_JOB = """#!/bin/bash
#SBATCH --nodes=1
#SBATCH --partition=standard-g
#SBATCH --requeue
#SBATCH --open-mode=append
exec {python} {program}
"""


def _cluster(num_nodes: int) -> Cluster:
    if reason := missing_tools():
        raise BenchmarkError(reason)
    return Cluster(num_nodes=num_nodes, slurmd_timeout_seconds=3, message_timeout_seconds=2)


def lose_node(step: int, tell: Callable[[str], None]) -> Pause | None:
    """Cut the power of a node that has ranks; a spare node goes on."""
    tell(f"a node is lost after step {step}")
    with _cluster(3) as cluster:

        def power_off(folder: str) -> None:
            cluster.power_off(sorted({event["node"] for event in events(folder, "started")})[-1])

        line = ["-m", "echelon", "run", "-n", "2", "--share-devices", "--spares", "1", "--scale", "data"]
        saved = ["--checkpoint-every", "1h", "--run-dir", "run"]
        return disturb(
            [*_allocation(3), "--no-kill", sys.executable, *line, *saved, PROGRAM],
            more={**cluster.environ, "OMP_NUM_THREADS": "1"}, after=step, strike=power_off,
        )  # fmt: skip


def lose_ranks(
    faults: Sequence[tuple[int, int]], num_nodes: int, ranks_per_node: int, tell: Callable[[str], None]
) -> list[tuple[Pause | None, Pause | None]]:
    """Kill ranks of trainings on Slurm nodes; return what each costs under echelon, and under torchrun."""
    pauses = []
    with _cluster(num_nodes) as cluster:
        for rank, step in faults:
            endpoint = f"127.0.5.1:{random.randint(20000, 30000)}"  # the first node's
            name = f"--rdzv-id={endpoint}"
            meeting = (f"--nnodes={num_nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", name)
            within, environ = _allocation(num_nodes), {**cluster.environ, "OMP_NUM_THREADS": "1"}
            pauses.append(lose_rank(rank, step, ranks_per_node, tell, within=within, meeting=meeting, more=environ))
    return pauses


def _allocation(num_nodes: int) -> list[str]:
    return ["salloc", "--quiet", f"--nodes={num_nodes}", "--exclusive", "--partition=standard-g"]


def chain(step: int, tell: Callable[[str], None]) -> Pause | None:
    """Tell the first job of a chain to end; the second one goes on."""
    tell(f"a job of a chain is told to end after step {step}")
    with _cluster(1) as cluster, tempfile.TemporaryDirectory(prefix="survive-") as name:
        folder, environ = Path(name), {**cluster.environ, "XDG_CONFIG_HOME": name, "OMP_NUM_THREADS": "1"}
        shutil.copy(PROGRAM, folder / "train.py")
        _echelon(folder, environ, "machines", "learn")
        wish = ("submit", "--gpus", "2", "-t", "5", "--json", "--chain", "2", "--max-hours", "1")
        told = json.loads(_echelon(folder, environ, *wish, "--checkpoint-every", "1h", "train.py"))
        shown = os.path.join(told["run_directory"], "slurm.out")
        wait_for_step(shown, step)
        cluster.run("scancel", "--signal=USR1", "--batch", str(told["job_id"]))
        return _until_the_end(shown, LIMIT_SECONDS)


def requeue(step: int, tell: Callable[[str], None]) -> Pause | None:
    """Let Slurm requeue a job that saves nothing; it begins anew."""
    tell(f"a job is requeued after step {step}")
    with _cluster(1) as cluster, tempfile.TemporaryDirectory(prefix="survive-") as name:
        shown = os.path.join(name, "shown")
        job = cluster.sbatch(_PLAIN_JOB.format(python=sys.executable, program=PROGRAM), f"--output={shown}")
        wait_for_step(shown, step)
        cluster.run("scontrol", "requeue", str(job))
        return _until_the_end(shown, REQUEUE_SECONDS)


def _echelon(folder: Path, environ: dict[str, str], *words: str) -> str:
    line = [sys.executable, "-m", "echelon", *words]
    done = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise BenchmarkError(f"echelon {words[0]}: {done.stderr[-500:]}")
    return done.stdout


def _until_the_end(shown: str, seconds: float) -> Pause | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pause = longest_pause(Path(shown).read_text(errors="replace"))
        if pause is not None:
            return pause
        time.sleep(0.2)
    print(f"the training did not come to its end: {Path(shown).read_text()[-300:]}", file=sys.stderr)
    return None
