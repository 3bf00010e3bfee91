"""Nodes are lost, and the others go on: `--nnodes MIN:MAX`."""

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests import warm
from tests.cluster import Cluster
from tests.runs import ECHELON, Run

from echelon.launch.crew import listen

HERE = Path(__file__).parent
PATIENT, SNAPSHOTS = str(HERE / "patient.py"), str(HERE / "snapshots.py")
ORPHAN_SECONDS = 5.0

pytestmark = pytest.mark.timeout(300)


@contextmanager
def by_hand(folder: Path, num_nodes: int, least: int, *words: str) -> Iterator[tuple[Run, list[subprocess.Popen[str]]]]:
    """Start nodes by hand: the first has the supervisor, the others are agents."""
    with listen("127.0.0.1") as free:
        port = free.getsockname()[1]
    options = (f"--nnodes={least}:{num_nodes}", "--master-addr=127.0.0.1", f"--master-port={port}", *words)
    first = Run(folder, "--node-rank=0", *options)
    others = [
        subprocess.Popen(
            [*ECHELON, "run", f"--node-rank={node_rank}", *options],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for node_rank in range(1, num_nodes)
    ]  # fmt: skip
    try:
        yield first, others
    finally:
        for other in others:
            other.kill()
            other.communicate()
        if first.process.poll() is None:
            first.kill(first.process.pid)
            first.finish()


def until_all_wait(run: Run, num_ranks: int) -> None:
    """Wait until each rank has said what it has to say, so that the loss of a node cannot be sooner than its words."""
    run.until(lambda: len(list(run.directory.parent.glob("waits-*"))) == num_ranks, f"{num_ranks} ranks wait")


def test_the_others_go_on(tmp_path: Path) -> None:
    """A node is killed: its ranks are counted out, the others get new numbers, and no restart is used up."""
    with by_hand(tmp_path, 3, 1, "-n", "2", "--show", "0", PATIENT, "6") as (run, (second, _)):
        until_all_wait(run, 6)
        second.send_signal(signal.SIGKILL)
        code, out, err = run.finish()
    assert code == 0, err
    assert out.splitlines() == ["attempt 0 of 6", "attempt 0 of 4"]
    assert re.search(r"lost agent: .* is gone .*; continuing with 4 ranks on 2 of 3 nodes", err)
    assert "echelon: 4 ranks on 2 nodes" in err
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


def test_too_few_are_left(tmp_path: Path) -> None:
    """Fewer nodes than the least end a run as the loss of any node ends others."""
    with by_hand(tmp_path, 2, 2, "-n", "1", PATIENT, "2") as (run, (second,)):
        until_all_wait(run, 2)
        second.send_signal(signal.SIGKILL)
        code, _, err = run.finish()
    assert code == 1, err
    assert "lost agent: " in err
    assert "going on" not in err
    assert "--nnodes 1:2" in err


@pytest.mark.tier("all")
def test_the_same_bits_with_fewer_nodes(tmp_path: Path) -> None:
    """A script for one device goes on from its snapshot: of 3 nodes that are left, --exact 4 has use for 2."""
    alone = tmp_path / "alone"
    alone.mkdir()
    done = warm.run(["-m", "echelon", "run", "-n", "1", "--exact", "4", SNAPSHOTS], cwd=alone)
    assert done.returncode == 0, done.stderr
    together = tmp_path / "together"
    with by_hand(together, 4, 1, "-n", "1", "--exact", "4", SNAPSHOTS, "wait") as (run, (_, third, _)):
        run.until((together / "waits").exists, "three epochs are trained", seconds=120)
        third.send_signal(signal.SIGKILL)
        code, out, err = run.finish(seconds=120)
    assert code == 0, err
    assert "continuing with 2 ranks on 2 of 4 nodes" in err
    assert out == done.stdout


@pytest.mark.slurm
def test_node_of_a_job_fails(slurm: Cluster, tmp_path: Path) -> None:
    """Slurm loses a node of a job with --no-kill: the job lives on, and so does the run."""
    allocate = ("salloc", "--quiet", "--no-kill", "--nodes=3", "--ntasks-per-node=1", "--exclusive",
                "--partition=standard-g")  # fmt: skip
    words = ("--nnodes=2:3", "-n", "2", "--share-devices", PATIENT, "6")
    run = Run(tmp_path, *words, environ=slurm.environ, before=allocate)
    until_all_wait(run, 6)
    failed = run.events("agent")[-1]["node"]
    slurm.down(failed)
    try:
        code, out, err = run.finish()
    finally:
        slurm.reset()
    assert code == 0, err
    assert out.splitlines() == ["attempt 0 of 6", "attempt 0 of 4"]
    assert "continuing with 4 ranks on 2 of 3 nodes" in err
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


@pytest.mark.slurm
def test_task_of_a_node_is_killed(slurm: Cluster, tmp_path: Path) -> None:
    """Where each rank is a task of Slurm's, a node that has lost one is left out, and what is left of it ends."""
    allocate = ("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", "--exclusive", "--partition=standard-g")
    words = ("--nnodes=1:2", "-n", "2", "--launch", "tasks", "--share-devices", PATIENT, "4")
    run = Run(tmp_path, *words, environ=slurm.environ, before=allocate)
    until_all_wait(run, 4)
    first = run.events("agent")[0]["node"]
    run.kill(next(agent["pid"] for agent in run.events("agent") if agent["node"] == first))
    code, out, err = run.finish()
    assert code == 0, err
    assert out.splitlines() == ["attempt 0 of 4", "attempt 0 of 2"]
    assert "continuing with 2 ranks on 1 of 2 nodes" in err
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


def test_submitted_job_outlives_its_nodes(tmp_path: Path) -> None:
    """`echelon submit --min-nodes` asks Slurm to keep the job, and the run to go on; wrong numbers are refused."""

    def submit(*options: str) -> subprocess.CompletedProcess[str]:
        command = [*ECHELON, "submit", "--machine", "lumi", "--nodes", "4", "--time", "1h", "-A", "p", "--dry-run"]
        return subprocess.run(
            [*command, *options, PATIENT, "6"], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    script = submit("--min-nodes", "3").stdout
    assert re.search(r"^#SBATCH --no-kill +# if a node fails, the others continue$", script, re.MULTILINE)
    assert " --nnodes=3:4 " in script
    assert "--no-kill" not in submit("--min-nodes", "4").stdout
    as_torchrun = submit("--", "torchrun", "--nnodes=3:4", "--nproc-per-node=8").stdout
    assert "#SBATCH --no-kill " in as_torchrun
    assert "--nnodes=3:4" in as_torchrun.splitlines()[-1]
    for options, message, hint in (
        (("--min-nodes", "5"), "--min-nodes 5: the job has 4 nodes", "--min-nodes 3"),
        (("--min-nodes", "0"), "--min-nodes 0: give a number of at least 1", "--min-nodes 1"),
        (("--min-nodes", "2", "--plain"), "a plain script cannot continue when a node fails", "without --plain"),
        (("--min-nodes", "2", "--", "torchrun"), "torchrun counts its nodes itself", "torchrun --nnodes=2:MAX"),
        (("--min-nodes", "2", "--", "srun"), "srun counts its nodes itself", "start the script without its launcher"),
    ):
        done = submit(*options)
        assert done.returncode == 2
        assert message in done.stderr
        assert hint in done.stderr
        assert "Traceback" not in done.stderr
