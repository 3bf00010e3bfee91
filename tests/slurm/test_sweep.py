"""`echelon sweep` inside an allocation of a real Slurm: slots on all nodes, each with its own devices."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.runs import ECHELON, left_behind
from tests.slurm.test_submit import call

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]
PATIENCE_SECONDS = 120.0

SCRIPT = """
import os, signal, sys, time
def save(*_):
    time.sleep(0.5)
    print("saved", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("x", sys.argv[1], os.environ["SLURMD_NODENAME"], os.environ["ROCR_VISIBLE_DEVICES"], flush=True)
time.sleep(600 if len(sys.argv) > 2 else 0)
"""
CHAINED = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit("told to save"))
print("x", sys.argv[1], flush=True)
while sys.argv[1] != "0" and not os.path.exists("go"):
    time.sleep(0.01)
"""
ALLOCATE = ("salloc", "--quiet", "--nodes=2", "--gpus-per-node=4", "--cpus-per-gpu=7")
WORDS = (*ECHELON, "sweep", "--metric", "x", "--out", "swept", "--json")


def logs(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.glob("swept/*/logs/*/rank-0.log")]


def test_slots_are_on_all_nodes_of_an_allocation(slurm: Cluster, tmp_path: Path) -> None:
    """Each trial sees its own two devices of its own node, and its ranks alone share a global batch."""
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [*WORDS, "--gpus-per-run", "2", "--global-batch", "6", "-p", "n=0:5", "--", "train.py", "{n}"]
    done = slurm.run(*ALLOCATE, *words, check=False, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "6 trials, 4 runs of 2 ranks side by side" in done.stderr
    assert [trial["metric"] for trial in json.loads(done.stdout)["trials"]] == [0, 1, 2, 3, 4, 5]
    places = {tuple(log.split()[2:]) for log in logs(tmp_path)}
    nodes = {node for node, _ in places}  # Slurm may leave out one that another test has just freed
    assert len(nodes) == 2
    assert places == {(node, devices) for node in nodes for devices in ("0,1", "2,3")}


def test_end_of_a_sweep_lets_trials_on_all_nodes_save(slurm: Cluster, tmp_path: Path) -> None:
    """SIGTERM reaches the ranks of other nodes, which have time to answer."""
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [*WORDS, "-p", "n=0:5", "--gpus-per-run", "4", "--", "train.py", "{n}", "long"]
    process = subprocess.Popen(
        [*ALLOCATE, *words], cwd=tmp_path, env={**os.environ, **slurm.environ}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + PATIENCE_SECONDS
    while sum(map(bool, logs(tmp_path))) < 2:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    [child] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "6 trials: 6 waiting" in said
    assert [log.split()[-1] for log in logs(tmp_path)] == ["saved", "saved"]
    assert left_behind(str(tmp_path)) == []


def test_next_job_of_a_chain_goes_on(slurm: Cluster, tmp_path: Path) -> None:
    """A warning ends the trials; the next job runs those without a result, and the one after it is cancelled."""
    (tmp_path / "train.py").write_text(CHAINED)
    assert call(slurm, tmp_path, tmp_path, "machines", "learn").returncode == 0
    sweep = [
        "echelon",
        "sweep",
        "--metric",
        "x",
        "--gpus-per-run",
        "4",
        "--slots",
        "1",
        "-p",
        "n=0:3",
        "train.py",
        "{n}",
    ]
    resources = ["--nodes", "2", "--gpus-per-node", "4", "-t", "5", "--chain", "3", "--max-hours", "1", "--json"]
    done = call(slurm, tmp_path, tmp_path, "submit", *resources, "--", *sweep)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    folder = Path(told["run_directory"])

    def num_began() -> int:
        return sum(map(bool, (path.read_text() for path in folder.glob("*/logs/*/rank-0.log"))))

    slurm.wait(lambda: num_began() == 3, "two trials that wait", timeout=PATIENCE_SECONDS)
    slurm.run("scancel", "--signal=USR1", "--batch", str(told["job_id"]))
    slurm.wait_job(int(told["job_id"]), timeout=PATIENCE_SECONDS)
    (tmp_path / "go").touch()
    for number in told["waiting"]:
        slurm.wait_job(int(number), timeout=PATIENCE_SECONDS)
    output = (folder / "slurm.out").read_text()
    trials = json.loads((folder / "sweep.json").read_text())["trials"]
    assert [trial["run"] for trial in trials] == ["trial-0", "trial-1-1", "trial-2-1", "trial-3"], output
    assert {trial["state"] for trial in trials} == {"ended well"}
    assert "job 2 of 3, goes on after 1 trial\n" in output
    records = [json.loads(line) for line in (folder / "chain.jsonl").read_text().splitlines()]
    assert [record["event"] for record in records] == ["begin", "end", "begin", "end", "over"]
    assert records[-1]["why"] == "all trials have a result"
