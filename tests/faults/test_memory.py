"""After a failure a training goes on from the memory of the nodes, where its state is newer than on the disk."""

import fcntl
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tests import warm
from tests.cluster import Cluster
from tests.faults.test_revival import in_job, last_agent
from tests.runs import ECHELON, Run
from tests.tiers import some

SCRIPT = str(Path(__file__).with_name("remembering.py"))
SAVED = ("--checkpoint-every", "1h", "--show", "all")  # nothing reaches the disk
FROM_MEMORY = r"continues after step (\d+), from the memory of the nodes"
ORPHAN_SECONDS = 5.0

pytestmark = pytest.mark.timeout(300)


def undisturbed(folder: Path, num_ranks: int) -> str:
    """Return the losses of a run that nobody disturbs."""
    folder.mkdir()
    done = warm.run(["-m", "echelon", "run", "-n", str(num_ranks), SCRIPT, "undisturbed"], cwd=folder)
    assert done.returncode == 0, done.stderr
    return (folder / "losses.txt").read_text()


def memory_of(run: Run) -> list[str]:
    """Return the folders that the run's ranks have in memory."""
    run_id = json.loads((run.directory / "agent.json").read_text())["run_id"]
    return [path.name for path in Path("/dev/shm").glob(f"echelon-memory-{run_id}.*")]


def until_it_stands_still(run: Run) -> None:
    log = run.directory / "logs/attempt-0/rank-0.log"
    run.until(lambda: log.exists() and "stands still" in log.read_text(), "it stands still")


def step_of(err: str) -> int:
    found = re.search(FROM_MEMORY, err)
    assert found is not None, err
    return int(found.group(1))


@pytest.mark.parametrize("what", some(["rank", "agent", "supervisor"], 3))
def test_killed_process(tmp_path: Path, what: str) -> None:
    """A process is killed on one node: no checkpoint is on the disk, and the training still goes on."""
    run = Run(tmp_path, "-n", "2", *SAVED, SCRIPT)
    until_it_stands_still(run)
    assert len(memory_of(run)) == 1
    pid = {"rank": int(run.events("started")[-1]["pid"]), "agent": last_agent(run), "supervisor": run.supervisor}[what]
    run.kill(pid)
    code, _, err = run.finish()
    assert code == 0, err
    assert 1 <= step_of(err) <= 20
    assert (tmp_path / "losses.txt").read_text() == undisturbed(tmp_path / "undisturbed", 2)
    assert memory_of(run) == []
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


@pytest.mark.tier("all")
def test_progress_in_memory_is_progress(tmp_path: Path) -> None:
    """Five failures do not end a run that may restart three times without progress: what was in memory is saved."""
    run = Run(tmp_path, "-n", "2", *SAVED, SCRIPT, "dies")
    code, _, err = run.finish(seconds=120)
    assert code == 0, err
    assert len(re.findall(FROM_MEMORY, err)) >= 4
    assert len(run.events("restart")) == 5
    assert (tmp_path / "losses.txt").read_text() == undisturbed(tmp_path / "undisturbed", 2)


@pytest.mark.tier("all")
def test_nothing_in_memory(tmp_path: Path) -> None:
    """With an empty ECHELON_MEMORY_FOLDER nothing is kept in memory, without a line."""
    run = Run(tmp_path, "-n", "2", *SAVED, SCRIPT, environ={**os.environ, "ECHELON_MEMORY_FOLDER": ""})
    until_it_stands_still(run)
    (folder,) = memory_of(run)
    assert list(Path("/dev/shm", folder).glob("*step*")) == []
    run.kill(int(run.events("started")[-1]["pid"]))
    code, _, err = run.finish()
    assert code == 0, err
    assert "memory" not in re.sub(r"when memory ran out", "", err)
    assert "continues after" not in err
    assert (tmp_path / "losses.txt").read_text() == undisturbed(tmp_path / "undisturbed", 2)


@pytest.mark.tier("all")
@pytest.mark.parametrize("what", some(["supervisor", "command"], 2))
def test_killed_run_leaves_nothing_in_memory(tmp_path: Path, what: str) -> None:
    """When nobody goes on with a run, its states leave the memory."""
    run = Run(tmp_path, "-n", "2", *SAVED, "--max-restarts", "0", SCRIPT)
    until_it_stands_still(run)
    assert len(memory_of(run)) == 1
    run.kill(run.supervisor if what == "supervisor" else run.process.pid)
    run.process.wait()
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []
    assert memory_of(run) == []


def test_folder_that_nobody_holds_is_removed(tmp_path: Path) -> None:
    """Where an agent and its guard were killed together, the next run of the user cleans up; a held one stays."""
    left, held = (Path(f"/dev/shm/echelon-memory-{os.urandom(8).hex()}.0") for _ in range(2))
    try:
        for folder in (left, held):
            folder.mkdir(mode=0o700)
            (folder / "owner").write_text("1")
            os.utime(folder, (1, 1))
        descriptor = os.open(held, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        subprocess.run([*ECHELON, "run", "-n", "1", "--", "true"], cwd=tmp_path, check=True, timeout=60)
        assert (left.exists(), held.exists()) == (False, True)
    finally:
        for folder in (left, held):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


@pytest.mark.tier("all")
@pytest.mark.slurm
@pytest.mark.parametrize("options", some([("--spares", "1"), ("--nnodes", "2:3", "--max-restarts", "0")], 2))
def test_lost_node(slurm: Cluster, tmp_path: Path, options: "tuple[str, ...]") -> None:
    """The share of a lost node is in its neighbour's memory: a spare goes on with it, or the nodes that are left."""
    run = in_job(tmp_path, slurm, *options, *SAVED, SCRIPT, num_nodes=3)
    until_it_stands_still(run)
    used = sorted({event["node"] for event in run.events("started")})
    run.kill(last_agent(run, used[0]))
    code, _, err = run.finish()
    assert code == 0, err
    assert 1 <= step_of(err) <= 20
    losses = (tmp_path / "losses.txt").read_text().split()
    expected = undisturbed(tmp_path / "undisturbed", 4).split()
    assert [float(one) for one in losses] == pytest.approx([float(one) for one in expected], rel=1e-4)
    assert memory_of(run) == []
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []
