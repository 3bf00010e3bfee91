"""An agent is lost on a healthy node: `--max-restarts` starts it again there."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.cluster.fixture import require_tools
from tests.runs import Run

AGAIN = str(Path(__file__).parent / "again.py")
ORPHAN_SECONDS = 5.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def quick() -> Iterator[Cluster]:
    """Offer a cluster that soon notices that a daemon is gone."""
    require_tools()
    with Cluster(num_nodes=4, slurmd_timeout_seconds=3, message_timeout_seconds=2) as cluster:
        yield cluster


def in_job(folder: Path, cluster: Cluster, *words: str, num_nodes: int = 2) -> Run:
    cluster.reset()
    allocate = ("salloc", "--quiet", "--no-kill", f"--nodes={num_nodes}", "--exclusive", "--partition=standard-g")
    return Run(folder, "-n", "2", "--share-devices", *words, environ=cluster.environ, before=allocate)


def until_waiting(run: Run, attempt: int, num_ranks: int) -> None:
    """Wait until all ranks wait and are told, and the line of each attempt is shown.

    A rank waits before the supervisor tells that it started, and a supervisor that is killed shows no more.
    """
    folder = run.directory.parent
    run.until(lambda: len(list(folder.glob(f"waits-{attempt}-*"))) == num_ranks, f"attempt {attempt} waits")
    run.until_started(num_ranks, attempt=attempt)
    size = (attempt + 1) * len("attempt 0 of 2\n")
    run.until(lambda: run.shown_bytes() >= size, f"the line of attempt {attempt} is shown")


def last_agent(run: Run, node: str = "") -> int:
    return int([agent for agent in run.events("agent") if node in ("", agent["node"])][-1]["pid"])


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("launch", ["warm", "exec"])
def test_killed_agent_here(tmp_path: Path, launch: str) -> None:
    """On one machine the agent is started again; it imports again, and all ranks start."""
    run = Run(tmp_path, "-n", "2", "--max-restarts", "1", "--launch", launch, AGAIN, "1")
    until_waiting(run, 0, 2)
    run.kill(last_agent(run))
    code, out, err = run.finish()
    assert code == 0, err
    assert out.splitlines() == ["attempt 0 of 2", "attempt 1 of 2"]
    assert re.search(r"lost agent: the agent on \S+ is gone .*; starting the agent on \S+ again, then all ranks", err)
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []
    assert not (run.directory / "secret").exists()


def test_the_new_agent_ends_what_the_old_one_left(tmp_path: Path) -> None:
    """The guard was killed too: the ranks of the first attempt are gone before those of the second start."""
    run = Run(tmp_path, "-n", "2", "--max-restarts", "1", "--launch", "exec", AGAIN, "2")
    until_waiting(run, 0, 2)
    first = [event["pid"] for event in run.events("started")]
    agent = last_agent(run)
    guard = next(int(line.split()[0]) for line in run.left_behind(seconds=0) if _is_guard(line, agent))
    run.kill(guard, signal.SIGSTOP)  # the agent replaces a guard that is gone, and not one that is stopped
    run.kill(agent)
    until_waiting(run, 1, 2)
    assert not any(is_alive(pid) for pid in first)
    run.kill(guard)
    run.kill(run.process.pid, signal.SIGINT)
    assert run.finish()[0] == 128 + signal.SIGINT
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


def _is_guard(line: str, agent: int) -> bool:
    """Say whether a process has the command line of the agent, but is neither the agent nor its child."""
    pid = int(line.split()[0])
    return "node.pyz agent" in line and pid != agent and parent_of(pid) != agent


@pytest.mark.slurm
def test_killed_agent_of_a_node(quick: Cluster, tmp_path: Path) -> None:
    """The node goes on: a step of its own starts the agent there, and all four ranks start again."""
    run = in_job(tmp_path, quick, "--max-restarts", "3", AGAIN, "1")
    until_waiting(run, 0, 4)
    node = run.events("agent")[-1]["node"]
    run.kill(last_agent(run, node))
    code, out, err = run.finish()
    assert code == 0, err
    assert out.splitlines() == ["attempt 0 of 4", "attempt 1 of 4"]
    assert f"starting the agent on {node} again, then all ranks" in err
    assert [event["node"] for event in run.events("agent again")] == [node]
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


@pytest.mark.tier("all")
@pytest.mark.slurm
def test_killed_slurmstepd(quick: Cluster, tmp_path: Path) -> None:
    """Slurm's own process for the step is killed: the agent notices, and is started again."""
    run = in_job(tmp_path, quick, "--max-restarts", "3", AGAIN, "1")
    until_waiting(run, 0, 4)
    agent = last_agent(run)
    run.kill(parent_of(agent))
    code, out, err = run.finish()
    assert code == 0, err
    assert out.splitlines() == ["attempt 0 of 4", "attempt 1 of 4"]
    assert "slurmstepd, which runs the agent for Slurm, was killed on " in err
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


@pytest.mark.slurm
def test_agent_that_is_lost_twice(quick: Cluster, tmp_path: Path) -> None:
    """A node that loses its agent again is named and left out; the other one goes on."""
    run = in_job(tmp_path, quick, "--nnodes", "1:2", "--max-restarts", "5", AGAIN, "1")
    until_waiting(run, 0, 4)
    node = run.events("agent")[-1]["node"]
    run.kill(last_agent(run, node))
    run.until(lambda: len(run.events("agent")) == 3, "the agent came again")
    run.kill(last_agent(run, node))
    code, out, err = run.finish()
    assert code == 0, err
    assert f"{node} is left out: its agent was lost 2 times" in err
    assert "continuing with 2 ranks on 1 of 2 nodes" in err
    assert out.splitlines()[-1] == "attempt 1 of 2"
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


@pytest.mark.slurm
@pytest.mark.parametrize("is_rank_first", [False, True])
def test_node_that_slurm_takes_down(quick: Cluster, tmp_path: Path, is_rank_first: bool) -> None:
    """It is named as such where the others go on, and nobody tries to start its agent again.

    The same holds where a rank of the node ends first, and its agent can still tell of that.
    """
    run = in_job(tmp_path, quick, "--nnodes", "1:2", "--max-restarts", "5", AGAIN, "1")
    until_waiting(run, 0, 4)
    node = run.events("agent")[-1]["node"]
    if is_rank_first:
        run.kill(next(event["pid"] for event in run.events("started") if event["node"] == node))
    quick.down(node)
    run.until(lambda: any(event["nodes"] == 1 for event in run.events("restart")), "the other node goes on")
    run.kill(run.supervisor, signal.SIGINT)
    _, _, err = run.finish()
    quick.reset()
    assert re.search(rf"lost node: Slurm reports that {node} is down\S*; continuing with 2 ranks on 1 of 2", err), err
    assert run.events("agent again") == []
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


@pytest.mark.slurm
def test_node_whose_daemon_is_gone(quick: Cluster, tmp_path: Path) -> None:
    """An agent that cannot be started again is not waited for: the run names the node, and ends."""
    run = in_job(tmp_path, quick, "--max-restarts", "5", AGAIN, "1")
    until_waiting(run, 0, 4)
    node = run.events("agent")[-1]["node"]
    agent = last_agent(run, node)
    quick.kill_slurmd(node)
    run.kill(agent)
    code, _, err = run.finish(seconds=90)
    quick.reset()
    assert code != 0
    assert re.search(rf"lost (node: Slurm reports that|agent: the agent on) {node} is", err), err
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []
