"""A frozen agent or warm process is noticed within 10 s, though no connection is closed."""

import re
import signal
import time
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.faults.test_revival import AGAIN, in_job, is_alive, last_agent, until_waiting
from tests.runs import Run

ORPHAN_SECONDS = 5.0
WORKER = str(Path(__file__).parent / "worker.py")
NOTICE_SECONDS = 10.0
SLACK_SECONDS = 4.0  # other tests share the cores

pytestmark = pytest.mark.timeout(300)


def test_frozen_agent_here(tmp_path: Path) -> None:
    """It is named with its ranks and its process; its ranks end though it cannot end them."""
    run = Run(tmp_path, "-n", "2", WORKER)
    run.until_started(2)
    agent = last_agent(run)
    frozen_at = time.monotonic()
    run.kill(agent, signal.SIGSTOP)
    code, _, err = run.finish()
    assert time.monotonic() - frozen_at < NOTICE_SECONDS + SLACK_SECONDS
    assert code == 1
    what = rf"the agent on \S+, which runs ranks 0 to 1, has been silent for \d+ s: process {agent} is stopped"
    assert re.search("lost agent: " + what, err), err
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


def test_frozen_agent_is_replaced_here(tmp_path: Path) -> None:
    """--max-restarts starts another agent in its place, and ends the frozen one with its ranks."""
    run = Run(tmp_path, "-n", "2", "--max-restarts", "1", AGAIN, "1")
    until_waiting(run, 0, 2)
    pids = [last_agent(run), *(event["pid"] for event in run.events("started"))]
    run.kill(pids[0], signal.SIGSTOP)
    code, out, err = run.finish()
    assert code == 0, err
    assert out.splitlines() == ["attempt 0 of 2", "attempt 1 of 2"]
    assert not any(is_alive(pid) for pid in pids)
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


def test_frozen_warm_process(tmp_path: Path) -> None:
    """A warm process that is stopped reports no end of a rank: the agent ends it, and the cause is named."""
    run = Run(tmp_path, "-n", "2", "--max-restarts", "1", AGAIN, "1")
    until_waiting(run, 0, 2)
    frozen_at = time.monotonic()
    run.kill(run.events("imported")[0]["warm_pid"], signal.SIGSTOP)
    run.until(lambda: bool(run.events("restart")), "the ranks start again")
    assert time.monotonic() - frozen_at < NOTICE_SECONDS + SLACK_SECONDS
    code, out, err = run.finish()
    assert code == 0, err
    assert "lost warm process: the process that forked the ranks was stopped by a signal for 5 s" in err
    assert out.splitlines() == ["attempt 0 of 2", "attempt 1 of 2"]
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


def test_time_limit_with_a_frozen_agent(tmp_path: Path) -> None:
    """--timeout 8 ends at about 8 s, with the exit code of a time limit: nobody waits for the frozen agent."""
    began = time.monotonic()
    run = Run(tmp_path, "-n", "2", "--timeout", "8", WORKER)
    run.until_started(2)
    time.sleep(max(0.0, 3 - (time.monotonic() - began)))
    run.kill(last_agent(run), signal.SIGSTOP)
    code, _, err = run.finish()
    assert code == 124, err
    assert "time limit: --timeout 8 s has passed" in err
    assert time.monotonic() - began < 8 + SLACK_SECONDS
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


def test_paused_run_loses_no_agent(tmp_path: Path) -> None:
    """A supervisor that was suspended for longer than an agent may be silent goes on with its agent."""
    run = Run(tmp_path, "-n", "2", "--timeout", "60", WORKER)
    run.until_started(2)
    agent = last_agent(run)
    for pid in (run.supervisor, agent):
        run.kill(pid, signal.SIGSTOP)
    time.sleep(NOTICE_SECONDS)
    for pid in (run.supervisor, agent):
        run.kill(pid, signal.SIGCONT)
    time.sleep(3)
    assert run.events("agent lost") == []
    run.kill(run.process.pid, signal.SIGINT)
    assert run.finish()[0] == 128 + signal.SIGINT
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


@pytest.mark.slurm
def test_frozen_agent_of_a_node(slurm: Cluster, tmp_path: Path) -> None:
    """A spare takes over; the frozen agent and its ranks end at once, so that they disturb nobody."""
    run = in_job(tmp_path, slurm, "--spares", "1", AGAIN, "1", num_nodes=3)
    until_waiting(run, 0, 4)
    lost = sorted({event["node"] for event in run.events("started")})[-1]
    pids = [event["pid"] for event in run.events("started") if event["node"] == lost]
    frozen_at = time.monotonic()
    run.kill(last_agent(run, lost), signal.SIGSTOP)
    run.until(lambda: bool(run.events("restart")), "the spare takes over")
    assert time.monotonic() - frozen_at < NOTICE_SECONDS + SLACK_SECONDS
    run.kill(run.supervisor, signal.SIGINT)
    _, _, err = run.finish()
    assert re.search(rf"lost agent: the agent on {lost}, .* has been silent for \d+ s.*; the spare \S+ takes over", err)
    assert not any(is_alive(pid) for pid in pids)
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


@pytest.mark.slurm
def test_time_limit_with_a_frozen_agent_of_a_node(slurm: Cluster, tmp_path: Path) -> None:
    """On two nodes too, the run ends at about its limit."""
    run = in_job(tmp_path, slurm, "--timeout", "14", WORKER)
    run.until_started(4)
    began = run.events("supervisor")[0]["time"]
    time.sleep(max(0.0, 10 - (time.time() - began)))
    run.kill(last_agent(run), signal.SIGSTOP)
    code, _, err = run.finish()
    assert code == 124, err
    assert "time limit: --timeout 14 s has passed" in err
    assert run.events("end")[0]["time"] - began < 14 + SLACK_SECONDS
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []
