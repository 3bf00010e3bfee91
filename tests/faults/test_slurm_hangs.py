"""Hangs on two nodes of Slurm: the node is named with the rank, also when its agent is what is frozen."""

import re
import signal
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.runs import Run

HANGING = Path(__file__).parent / "hanging.py"
LEAVING = Path(__file__).parents[1] / "run" / "leaving.py"
ORPHAN_SECONDS = 10.0
ALLOCATE = ("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1", "--exclusive", "--partition=standard-g")

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


def start(folder: Path, slurm: Cluster) -> Run:
    words = ("--hang-timeout", "6", "--check", "off", "--scale", "off", "-n", "2", "--share-devices", "--show", "none")
    run = Run(folder, *words, "--env", "PAUSE=1", str(HANGING), "none", environ=slurm.environ, before=ALLOCATE)
    log = run.directory / "logs" / "attempt-0" / "rank-1.log"
    run.until(lambda: log.exists() and "hangs" in log.read_text(), "all ranks train")
    return run


def finish(run: Run) -> str:
    code, _, err = run.finish(seconds=120)
    assert code == 75, err
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []
    return err


@pytest.mark.tier("all")
def test_frozen_rank_of_another_node(tmp_path: Path, slurm: Cluster) -> None:
    """A rank of the second node is stopped: the report names it and its node."""
    run = start(tmp_path, slurm)
    frozen = next(event for event in run.events("started") if event["rank"] == 3)
    run.kill(frozen["pid"], signal.SIGSTOP)
    err = finish(run)
    words = rf"rank 3 on {frozen['node']} is stopped by a signal; 3 ranks wait in all_reduce"
    assert re.search(rf"rank 3 on {frozen['node']} \(local rank 1.*\) failed first: hang: .*: {words}", err), err


@pytest.mark.tier("all")
def test_frozen_agent_of_another_node(tmp_path: Path, slurm: Cluster) -> None:
    """The agent of the second node is stopped with its ranks: the node is named."""
    run = start(tmp_path, slurm)
    agent = next(event for event in run.events("agent") if event["agent_index"] == 1)
    ranks = [event["pid"] for event in run.events("started") if event["node"] == agent["node"]]
    for pid in (agent["pid"], *ranks):
        run.kill(pid, signal.SIGSTOP)
    err = finish(run)
    assert re.search(rf"hang: the agent on {agent['node']}, which runs ranks 2 to 3, has been silent", err), err


@pytest.mark.tier("all")
def test_rank_that_leaves_those_of_another_node(tmp_path: Path, slurm: Cluster) -> None:
    """The calls of the ranks of all nodes are compared."""
    words = ("--check", "off", "--scale", "off", "-n", "2", "--share-devices", "--show", "none")
    run = Run(tmp_path, *words, str(LEAVING), "late", environ=slurm.environ, before=ALLOCATE)
    code, _, err = run.finish(seconds=120)
    assert code == 1, err
    assert re.search(r"rank 0 is at leaving.py:\d+ \(.*; ranks 1 to 3 are in all_reduce no. 3 of float32 \[4\]", err), (
        err
    )
