"""Whatever is killed, whenever: the cause is named, the exit code is not 0, and nothing is left running."""

import random
import re
import signal
import time
from pathlib import Path

import pytest
from tests.runs import Run
from tests.tiers import pick, product

WORKER = str(Path(__file__).parent / "worker.py")
TIMES = pick(1, all=5, soak=20)
NUM_RANKS = 3
ORPHAN_SECONDS = 5.0


def start(folder: Path, *options: str) -> Run:
    return Run(folder, "-n", str(NUM_RANKS), *options, WORKER)


def pause(number: int) -> None:
    """Let the fault strike at another moment each time, the same in every run of the tests."""
    time.sleep(random.Random(number).uniform(0, 0.3))


def finish_badly(run: Run, wanted: str) -> str:
    code, _, err = run.finish(seconds=15)
    assert code != 0
    assert re.search(wanted, err), err
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []
    return err


@product(launch=["warm", "exec"], number=range(TIMES))
def test_killed_rank(tmp_path: Path, launch: str, number: int) -> None:
    """The rank that was killed is named, and the others end within 2 s."""
    run = start(tmp_path, "--launch", launch)
    run.until_started(NUM_RANKS)
    pause(number)
    victim = random.Random(number).choice(run.events("started"))
    killed_at = time.monotonic()
    run.kill(victim["pid"])
    who = rf"rank {victim['rank']} on \S+ \(local rank {victim['rank']}\)"
    finish_badly(run, who + " failed first: killed by a signal: SIGKILL")
    assert run.process.returncode == 137
    assert time.monotonic() - killed_at < 2 + 3  # other tests share the cores


@product(launch=["warm", "exec"], number=range(TIMES))
def test_killed_agent(tmp_path: Path, launch: str, number: int) -> None:
    """The loss of the agent is what the run reports."""
    run = start(tmp_path, "--launch", launch)
    run.until_started(NUM_RANKS)
    pause(number)
    run.kill(run.events("agent")[0]["pid"])
    finish_badly(run, r"lost agent: the agent on \S+ is gone")


def test_killed_agent_before_it_has_come(tmp_path: Path) -> None:
    """The signal that has ended it is named, unless it came after all."""
    run = start(tmp_path)
    run.until(lambda: any("node.pyz agent" in one for one in run.left_behind(seconds=0)), "an agent was started")
    run.kill(int(next(one for one in run.left_behind(seconds=0) if "node.pyz agent" in one).split()[0]))
    finish_badly(run, r"the agent was killed by SIGKILL|lost agent: the agent on \S+ is gone")


@pytest.mark.parametrize("number", range(TIMES))
def test_killed_warm_process(tmp_path: Path, number: int) -> None:
    """The loss of the warm process, which alone can wait for the ranks, ends the run and is named."""
    run = start(tmp_path)
    run.until_started(NUM_RANKS)
    pause(number)
    run.kill(run.events("imported")[0]["warm_pid"])
    finish_badly(run, "lost warm process: the process that forked the ranks was killed")


@product(launch=["warm", "exec"], number=range(TIMES))
def test_killed_supervisor(tmp_path: Path, launch: str, number: int) -> None:
    """Without a supervisor the agents end their ranks and leave."""
    run = start(tmp_path, "--launch", launch)
    run.until(lambda: bool(run.events("agent")), "the agent came")
    pause(number)
    run.kill(run.supervisor)
    assert run.finish()[0] == 128 + signal.SIGKILL
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


@pytest.mark.parametrize("number", range(TIMES))
def test_killed_supervisor_before_its_agent_has_come(tmp_path: Path, number: int) -> None:
    """An agent that was started and finds nobody who listens does not wait for one."""
    run = start(tmp_path)
    run.until(lambda: any("node.pyz agent" in one for one in run.left_behind(seconds=0)), "an agent was started")
    time.sleep(random.Random(number).uniform(0, 0.05))
    run.kill(run.supervisor)
    run.finish()
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


@pytest.mark.parametrize("number", range(TIMES))
def test_killed_supervisor_and_agent_at_once(tmp_path: Path, number: int) -> None:
    """The guard ends the ranks when there is nobody else to do it."""
    run = start(tmp_path)
    run.until_started(NUM_RANKS)
    pause(number)
    run.kill(run.events("agent")[0]["pid"])
    run.kill(run.supervisor)
    run.finish()
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


@pytest.mark.parametrize("number", range(TIMES))
def test_fault_while_starting(tmp_path: Path, number: int) -> None:
    """A signal at any moment of the start ends the run as a signal does, with nothing left behind."""
    run = start(tmp_path)
    time.sleep(random.Random(number).uniform(0, 0.4))
    kind = random.Random(number).choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    run.kill(run.process.pid, kind)
    code, _, err = run.finish(seconds=15)
    assert code in (128 + kind, -kind) or (code == 1 and _is_of_python_alone(err)), err
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


def _is_of_python_alone(err: str) -> bool:
    """Return whether Python was interrupted while it started, before any line of ours was read."""
    lines = [line for line in err.splitlines() if line.lstrip().startswith("File ")]
    return err.rstrip().endswith("KeyboardInterrupt") and bool(lines) and not any("/echelon/" in one for one in lines)


def test_lost_terminal(tmp_path: Path) -> None:
    """A closed terminal ends the run: SIGHUP reaches the supervisor and nothing stays."""
    run = start(tmp_path)
    run.until_started(NUM_RANKS)
    run.kill(run.process.pid, signal.SIGHUP)
    assert run.finish()[0] == 128 + signal.SIGHUP
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []
