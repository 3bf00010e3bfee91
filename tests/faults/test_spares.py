"""Nodes that wait take the place of lost ones: `--spares N`, and the nodes that `--exact` has no use for."""

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests import warm
from tests.cluster import Cluster
from tests.faults.test_fewer_nodes import SNAPSHOTS, by_hand
from tests.faults.test_revival import AGAIN, in_job, last_agent, until_waiting
from tests.runs import ECHELON

ORPHAN_SECONDS = 5.0
PLACES = str(Path(__file__).parent / "places.py")

pytestmark = pytest.mark.timeout(300)


@pytest.mark.slurm
def test_spare_takes_over(slurm: Cluster, tmp_path: Path) -> None:
    """The run keeps its size; the spare has no ranks before, and no restart is used up."""
    run = in_job(tmp_path, slurm, "--spares", "1", "--show", "all", PLACES, num_nodes=3)
    run.until(lambda: len(list(tmp_path.glob("waits-*"))) == 4, "four ranks wait")
    agents = {agent["node"]: agent["pid"] for agent in run.events("agent")}
    run.until_started(4)
    used = {event["node"] for event in run.events("started")}
    (spare,) = set(agents) - used
    lost = sorted(used)[-1]
    run.kill(agents[lost])
    code, out, err = run.finish()
    assert code == 0, err
    assert f"; the spare {spare} takes over; starting all ranks again" in err
    assert "4 ranks on 2 nodes" in err
    assert sorted(out.splitlines()) == [f"[{rank}] again, rank {rank} of 4" for rank in range(4)]
    again = {event["node"] for event in run.events("started") if event["attempt"] == 1}
    assert again == used - {lost} | {spare}
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


@pytest.mark.slurm
def test_lost_spare_and_then_a_lost_node(slurm: Cluster, tmp_path: Path) -> None:
    """The loss of a spare disturbs nobody; after it, --max-restarts starts a lost agent again."""
    run = in_job(tmp_path, slurm, "--spares", "1", "--max-restarts", "1", AGAIN, "1", num_nodes=3)
    until_waiting(run, 0, 4)
    used = {event["node"] for event in run.events("started")}
    (spare,) = {agent["node"] for agent in run.events("agent")} - used
    run.kill(last_agent(run, spare))
    run.until(lambda: bool(run.events("agent lost")), "the spare is lost")
    assert run.events("restart") == []
    lost = sorted(used)[-1]
    run.kill(last_agent(run, lost))
    code, _, err = run.finish()
    assert code == 0, err
    assert f"note: the spare {spare} is lost" in err
    assert len(run.events("agent again")) == 1
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


@pytest.mark.tier("all")
def test_nodes_that_exact_cannot_use_are_spares(tmp_path: Path) -> None:
    """Of three nodes --exact 4 uses two; after a loss the third one takes over, and the bits are the same."""
    alone = tmp_path / "alone"
    alone.mkdir()
    done = warm.run(["-m", "echelon", "run", "-n", "1", "--exact", "4", SNAPSHOTS], cwd=alone)
    together = tmp_path / "together"
    with by_hand(together, 3, 1, "-n", "1", "--exact", "4", SNAPSHOTS, "wait") as (run, others):
        run.until((together / "waits").exists, "three epochs are trained", seconds=120)
        used = {event["rank"]: event["pid"] for event in run.events("started")}
        assert len(used) == 2
        second = next(each for each in others if each.pid == parent_of_rank(used[1]))
        second.send_signal(signal.SIGKILL)
        code, out, err = run.finish(seconds=120)
    assert code == 0, err
    assert " takes over; continuing with 2 ranks on 2 of 3 nodes" in err
    assert out == done.stdout


def parent_of_rank(pid: int) -> int:
    """Return the agent of a rank: the parent of the process that forked it."""
    for _ in range(2):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("--spares", "1"), "--spares 1: this is a single machine", "salloc --no-kill --nodes=2"),
        (("--spares", "x"), "--spares x", "--spares 1"),
        (("--spares", ""), "--spares ''", "--spares 1"),
        (("--spares", "-1"), "--spares -1", "--spares 1"),
    ],
)
def test_spares_without_nodes(tmp_path: Path, words: Sequence[str], message: str, hint: str) -> None:
    """Spares that cannot be are refused before anything starts."""
    done = warm.run(["-m", "echelon", "run", *words, AGAIN, "0"], cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert hint in done.stderr
    assert not (tmp_path / "echelon-runs").exists()


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--spares", "2"), "has 2 nodes, and at least 1 must train, so 1 can wait"),
        (("--nnodes", "2", "--spares", "1"), "has 2 nodes, and at least 2 must train, so 0 can wait"),
        (("--nnodes", "1:2", "--spares", "2"), "has 2 nodes, and at least 1 must train, so 1 can wait"),
    ],
)
def test_job_with_too_few_nodes_for_spares(slurm: Cluster, tmp_path: Path, words: Sequence[str], message: str) -> None:
    """A job that is too small is named with both numbers, and the hint asks for a larger one."""
    code, _, err = in_job(tmp_path, slurm, *words, AGAIN, "0").finish()
    assert code == 2
    assert message in err
    assert "salloc --no-kill --nodes=" in err


def test_submitted_job_with_spares(tmp_path: Path) -> None:
    """`echelon submit --spares` asks Slurm to keep the job, and refuses more spares than nodes."""

    def submit(*options: str) -> subprocess.CompletedProcess[str]:
        command = [*ECHELON, "submit", "--machine", "lumi", "--nodes", "4", "--time", "1h", "-A", "p", "--dry-run"]
        return subprocess.run(
            [*command, *options, AGAIN, "0"], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    script = submit("--spares", "1").stdout
    assert "#SBATCH --no-kill " in script
    assert " --spares 1 " in script.splitlines()[-1] or " --spares=1 " in script.splitlines()[-1]
    assert "--nnodes=2:3 " in submit("--spares", "1", "--min-nodes", "2").stdout.splitlines()[-1]
    for options, message in (
        (("--spares", "4"), "--spares 4: the job has 4 nodes, and at least 1 must train"),
        (("--spares", "1", "--min-nodes", "4"), "--spares 1: the job has 4 nodes, and at least 4 must train"),
        (("--spares", "1", "--plain"), "--spares"),
    ):
        done = submit(*options)
        assert done.returncode == 2
        assert message in done.stderr
        assert "Traceback" not in done.stderr
