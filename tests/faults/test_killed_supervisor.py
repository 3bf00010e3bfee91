"""The supervisor is killed: its keeper starts another one, or says so; a report is there, and nothing is left.

If the keeper is killed, the supervisor ends the run; a training that is saved saves once more.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.faults.test_revival import AGAIN, in_job, until_waiting
from tests.runs import ECHELON, Run

ORPHAN_SECONDS = 5.0
WORKER = str(Path(__file__).parent / "worker.py")
GOES_ON = "another one starts all ranks again"
COUNTS = """
import os, signal, sys, time
caught = []
signal.signal(signal.SIGTERM, lambda *_: caught.append(time.time()))
open("ready-" + os.environ["RANK"], "w").close()
while not caught:
    time.sleep(0.02)
time.sleep(3)
open("saved-" + os.environ["RANK"], "w").write(str(len(caught)))
"""
STAYS = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("ready-" + os.environ["RANK"], "w").close()
time.sleep(120)
"""

TRAINS = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (rows,) in enumerate(DataLoader(TensorDataset(torch.randn(8000, 4)), batch_size=4)):
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
    if step == 5:
        open("trains", "w").close()
"""

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
    pid = run.supervisor
    run.kill(pid)
    code, _, err = run.finish()
    assert code == 137
    assert "hint: start the run again; with --max-restarts N, echelon does so" in err
    check(run, err, pid, 2)


def test_killed_before_its_agent_has_come(tmp_path: Path) -> None:
    """The secret that lies there for agents to come is removed too."""
    run = Run(tmp_path, "-n", "2", WORKER)
    run.until(lambda: (run.directory / "secret").exists(), "the secret is written")
    run.kill(run.supervisor, signal.SIGSTOP)
    run.kill(run.supervisor)
    _, _, err = run.finish()
    assert "lost supervisor" in err
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []
    assert not (run.directory / "secret").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP])
def test_another_follows(tmp_path: Path, number: signal.Signals) -> None:
    """With --max-restarts, all ranks start again under the next supervisor; one that was stopped is killed first."""
    run = Run(tmp_path, "-n", "2", "--max-restarts", "1", AGAIN, "1")
    until_waiting(run, 0, 2)
    first = run.supervisor
    run.kill(first, number)
    code, out, err = run.finish()
    assert code == 0, err
    how = {
        signal.SIGKILL: "was killed by SIGKILL",
        signal.SIGSEGV: "was killed by SIGSEGV",
        signal.SIGSTOP: "was killed by SIGKILL, because it had been stopped by a signal for 5 s",
    }[number]
    assert re.search(rf"^echelon: lost supervisor: process {first} on \S+ {how}; {GOES_ON}$", err, re.MULTILINE)
    assert out.splitlines() == ["attempt 0 of 2", "attempt 1 of 2"]
    assert [event["number"] for event in run.events("attempt")] == [0, 1]
    assert run.supervisor != first
    report = json.loads((run.directory / "report.json").read_text())
    assert (report["exit_code"], report["attempts"], report["restarts"]) == (0, 2, 1)
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []
    assert not (run.directory / "secret").exists()


def test_killed_keeper(tmp_path: Path) -> None:
    """A training with --checkpoint-every saves first, and can go on from there."""
    (tmp_path / "train.py").write_text(TRAINS)
    run = Run(tmp_path, "-n", "2", "--checkpoint-every", "4000steps", "train.py")
    run.until((tmp_path / "trains").exists, "the training is at work")
    run.process.kill()
    assert "saved after step" in run.finish()[2]  # the supervisor holds standard error until it ends
    report = json.loads((run.directory / "report.json").read_text())
    assert (report["exit_code"], report["cause"]) == (137, "interrupted")
    assert report["detail"].startswith("SIGKILL; all ranks saved and ended, ")
    assert len(list((run.directory / "checkpoints").glob("step-*"))) == 1
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


def test_not_more_often_than_allowed(tmp_path: Path) -> None:
    """A supervisor that is killed once more without progress has no other."""
    run = Run(tmp_path, "-n", "2", "--max-restarts", "1", AGAIN, "5")
    for attempt in range(2):
        until_waiting(run, attempt, 2)
        pid = run.supervisor
        run.kill(pid)
    code, _, err = run.finish()
    assert code == 137
    assert err.count(GOES_ON) == 1
    check(run, err, pid, 2)


def test_no_waiting_after_a_second_loss(tmp_path: Path) -> None:
    """A signal that comes while no supervisor is there is for the next one: the run ends at once."""
    run = Run(tmp_path, "-n", "2", "--max-restarts", "9", AGAIN, "9")
    for attempt in range(2):
        until_waiting(run, attempt, 2)
        run.kill(run.supervisor)
    run.until(lambda: len(run.events("restart")) == 2, "the next supervisor is waited for")
    run.kill(run.process.pid, signal.SIGTERM)
    code, _, err = run.finish(seconds=20)
    assert code == 128 + signal.SIGTERM, err
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_stopped_run_is_not_started_again(tmp_path: Path, number: signal.Signals) -> None:
    """A supervisor that is killed or halted after the run was told to end has no other: the run ends as it was told."""
    (tmp_path / "stays.py").write_text(STAYS)
    run = Run(tmp_path, "-n", "2", "--max-restarts", "3", "stays.py")
    run.until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, "the ranks ignore SIGTERM")
    run.kill(run.supervisor, signal.SIGSTOP)
    run.kill(run.process.pid, signal.SIGTERM)
    time.sleep(0.5)
    run.kill(run.supervisor, number)
    code, _, err = run.finish(seconds=30)
    assert code == 128 + signal.SIGTERM, err
    assert "echelon: SIGTERM stopped the run" in err
    assert len(run.events("supervisor")) == len(run.events("attempt")) == 1
    assert json.loads((run.directory / "report.json").read_text())["cause"] == "interrupted"
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


@pytest.mark.parametrize("seed", range(8))
def test_signal_at_the_end(tmp_path: Path, seed: int) -> None:
    """Ctrl-C, or the end of the supervisor, just when the run is over: no error of echelon's own."""
    chance = random.Random(seed)
    run = Run(tmp_path, "-n", "1", "--", "sleep", "0.2")
    run.until(lambda: bool(run.events("exit" if seed % 2 else "end")), "the rank has ended")
    time.sleep(chance.uniform(0.0, 0.02))
    try:
        if seed % 4 < 2:
            os.killpg(run.process.pid, signal.SIGINT)
        else:
            run.kill(run.supervisor)
    except ProcessLookupError:
        pass  # it has just ended
    code, _, err = run.finish()
    assert code in (0, 128 + signal.SIGINT, 128 + signal.SIGKILL, -signal.SIGINT, -signal.SIGKILL), err
    assert "error" not in err
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


def test_old_guard_spares_the_new_ranks(tmp_path: Path) -> None:
    """A guard that comes late ends what its own agent has left, and nothing of the next agent."""
    run = Run(tmp_path, "-n", "1", "--max-restarts", "1", AGAIN, "1")
    until_waiting(run, 0, 1)
    agent = run.events("agent")[0]["pid"]
    (guard,) = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_guard(pid, agent)]
    run.kill(guard, signal.SIGSTOP)
    run.kill(run.supervisor, signal.SIGSTOP)  # or it might start the agent again itself, which takes the one restart
    run.kill(agent)
    run.kill(run.supervisor)
    run.until(lambda: len(run.events("started")) == 2, "the next supervisor starts the rank")
    run.kill(guard, signal.SIGCONT)
    code, _, err = run.finish()
    assert code == 0, err
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


def is_guard(pid: int, agent: int) -> bool:
    """Say whether a process has the command line of the agent without being it."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return pid != agent and command == Path(f"/proc/{agent}/cmdline").read_bytes()


def test_killed_command(tmp_path: Path) -> None:
    """Whoever kills the command means the run: it ends, with a report, and no other follows."""
    run = Run(tmp_path, "-n", "2", "--max-restarts", "3", WORKER)
    run.until_started(2)
    run.kill(run.process.pid)
    code, _, err = run.finish()
    assert code == -signal.SIGKILL
    assert "echelon: SIGKILL stopped the run" in err
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []
    report = json.loads((run.directory / "report.json").read_text())
    assert (report["exit_code"], report["cause"], report["detail"]) == (137, "interrupted", "SIGKILL")


def test_signal_to_both_counts_once(tmp_path: Path) -> None:
    """`timeout` and Slurm signal all processes: the second copy must not cut short the time in which ranks save."""
    (tmp_path / "counts.py").write_text(COUNTS)
    run = Run(tmp_path, "-n", "2", "counts.py")
    run.until(lambda: len(list(tmp_path.glob("ready-*"))) == 2, "the ranks listen")
    os.killpg(run.process.pid, signal.SIGTERM)
    code, _, err = run.finish()
    assert code == 0, err
    assert [path.read_text() for path in sorted(tmp_path.glob("saved-*"))] == ["1", "1"]


@pytest.mark.slurm
@pytest.mark.parametrize("max_restarts", ["0", "1"])
def test_killed_in_a_job(slurm: Cluster, tmp_path: Path, max_restarts: str) -> None:
    """On two nodes the agents end their ranks; the report is in the job's output, or a new step goes on."""
    run = in_job(tmp_path, slurm, "--max-restarts", max_restarts, AGAIN, "1")
    until_waiting(run, 0, 4)
    pid = run.supervisor
    run.kill(pid)
    code, out, err = run.finish()
    if max_restarts == "0":
        check(run, err, pid, 4)
        return
    assert code == 0, err
    assert GOES_ON in err
    assert out.splitlines() == ["attempt 0 of 4", "attempt 1 of 4"]
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []


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


def test_killed_supervisor_of_a_command_in_a_pipe(tmp_path: Path) -> None:
    """Who reads the output of a run sees its end."""
    line = [*ECHELON, "run", "--run-dir", str(tmp_path / "run"), "-n", "1", "--", sys.executable, WORKER]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        events = tmp_path / "run/events.jsonl"
        deadline = time.monotonic() + 60
        while not (events.exists() and '"started"' in events.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        (pid,) = [json.loads(line)["pid"] for line in events.read_text().splitlines() if '"supervisor"' in line]
        os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=30)
        assert process.returncode == 137
