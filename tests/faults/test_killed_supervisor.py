"""The supervisor is killed: another process says so, the run directory holds a report, and nothing is left."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.faults.test_revival import in_job
from tests.runs import ECHELON, Run

ORPHAN_SECONDS = 5.0
WORKER = str(Path(__file__).parent / "worker.py")

pytestmark = pytest.mark.timeout(300)


def check(run: Run, err: str, pid: int, num_ranks: int) -> None:
    assert re.search(rf"^echelon: lost supervisor: process {pid} on \S+ was killed", err, re.MULTILINE), err
    assert re.search(rf"^echelon: {num_ranks} ranks?.* · exit 137 · run run$", err, re.MULTILINE), err
    report = json.loads((run.directory / "report.json").read_text())
    assert (report["exit_code"], report["cause"], report["ranks"]) == (137, "lost supervisor", num_ranks)
    assert run.events("end")[0]["cause"] == "lost supervisor"
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []
    assert not (run.directory / "secret").exists()


def test_killed_at_work(tmp_path: Path) -> None:
    """The report names the process and the number of ranks; `echelon runs` shows the exit code."""
    run = Run(tmp_path, "-n", "2", WORKER)
    run.until_started(2)
    run.kill(run.process.pid)
    code, _, err = run.finish()
    assert code == -signal.SIGKILL
    check(run, err, run.process.pid, 2)


def test_killed_before_its_agent_has_come(tmp_path: Path) -> None:
    """The secret that lies there for agents to come is removed too."""
    run = Run(tmp_path, "-n", "2", WORKER)
    run.until(lambda: (run.directory / "secret").exists(), "the secret is written")
    run.kill(run.process.pid, signal.SIGSTOP)
    run.kill(run.process.pid)
    _, _, err = run.finish()
    assert "lost supervisor" in err
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []
    assert not (run.directory / "secret").exists()


@pytest.mark.slurm
def test_killed_in_a_job(slurm: Cluster, tmp_path: Path) -> None:
    """On two nodes the agents end their ranks, and the report is in the job's output."""
    run = in_job(tmp_path, slurm, WORKER)
    run.until_started(4)
    pid = run.events("supervisor")[0]["pid"]
    run.kill(pid)
    _, _, err = run.finish()
    check(run, err, pid, 4)


def test_runs_that_end_in_order_have_no_such_report(tmp_path: Path) -> None:
    """A run that ends well, one that fails, and one that is interrupted report for themselves, once."""
    for number, words in enumerate((("true",), ("false",), ("sh", "-c", "kill -9 $$"))):
        done = subprocess.run(
            [*ECHELON, "run", "--run-dir", str(tmp_path / str(number)), "-n", "2", "--", *words],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "lost supervisor" not in done.stderr
    run = Run(tmp_path / "interrupted", "-n", "2", WORKER)
    run.until_started(2)
    run.kill(run.process.pid, signal.SIGTERM)
    _, _, err = run.finish()
    assert "lost supervisor" not in err
    assert len(run.events("end")) == 1


def test_watcher_holds_nothing_open(tmp_path: Path) -> None:
    """The lock of a run and its output end with the supervisor, and the watcher keeps neither."""
    run = Run(tmp_path, "-n", "1", WORKER)
    run.until_started(1)
    watchers = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_watcher(pid, run)]
    assert len(watchers) == 1
    held = {os.readlink(f"/proc/{watchers[0]}/fd/{name}") for name in os.listdir(f"/proc/{watchers[0]}/fd")}
    assert not any(str(run.directory) in path for path in held)
    assert len(held) == 2  # the standard error, and the socket to the supervisor
    run.kill(watchers[0])  # a run without its watcher goes on
    time.sleep(0.5)
    run.kill(run.process.pid, signal.SIGINT)
    assert run.finish()[0] == 128 + signal.SIGINT


def is_watcher(pid: int, run: Run) -> bool:
    """Say whether a process has the command line of the supervisor without being it."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return pid != run.process.pid and command == Path(f"/proc/{run.process.pid}/cmdline").read_bytes()
