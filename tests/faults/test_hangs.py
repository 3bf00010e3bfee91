"""A run that hangs ends, and the report names the rank for which the others wait, and the line of the script."""

import os
import re
import signal
import time
from pathlib import Path

import pytest
from tests.runs import Run
from tests.tiers import some

HANGING = Path(__file__).parent / "hanging.py"
LIMIT_SECONDS = 5
NOTICE_SECONDS = 30.0
ORPHAN_SECONDS = 5.0
EXIT_CODE = 75


def start(
    folder: Path,
    how: str,
    *options: str,
    limit: str = str(LIMIT_SECONDS),
    num_ranks: int = 3,
    is_forked: bool = False,
) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    os.mkfifo(folder / "fifo")
    words = ("--hang-timeout", limit, "--check", "off", "--scale", "off", "-n", str(num_ranks), "--show", "none")
    return Run(folder, *words, *options, str(HANGING), how, is_forked=is_forked)


def line(mark: str) -> int:
    """Return the number of the line with a comment."""
    return next(n for n, text in enumerate(HANGING.read_text().splitlines(), 1) if f"# {mark}" in text)


LOOP = line("the line of the loop")


def finish(run: Run) -> str:
    """Return what the run says at its end, which must be that it hangs."""
    code, _, err = run.finish(seconds=120)
    assert code == EXIT_CODE, err
    assert run.left_behind(seconds=ORPHAN_SECONDS) == []
    return err


def wait_for_hang(run: Run, rank: int = 1) -> float:
    """Wait until the odd rank has reached its place; return the time."""
    log = run.directory / "logs" / "attempt-0" / f"rank-{rank}.log"
    run.until(lambda: log.exists() and "hangs" in log.read_text(), f"rank {rank} hangs")
    return time.monotonic()


@pytest.mark.parametrize(
    ("how", "launch", "words"),
    some([
        ("lock", "warm", rf"rank 1 on \S+ is at hanging.py:{line('the line of the lock')} \(library.pthread_mutex"),
        ("file", "exec", rf"rank 1 on \S+ is at hanging.py:{line('the line of the file')} \(os.open"),
        ("sleeps", "warm", rf"rank 1 on \S+ is at hanging.py:{line('the line of the sleep')} \(time.sleep"),
        ("spins", "exec", rf"rank 1 on \S+ is at hanging.py:(?:{LOOP} \(while True|{LOOP + 1} \(pass)"),
        ("stops", "exec", r"rank 1 on \S+ is stopped by a signal"),
    ], 5, first=2),
)  # fmt: skip
def test_odd_rank_is_named(tmp_path: Path, how: str, launch: str, words: str) -> None:
    """The rank, its line and the line of the others are named in time; the ranks end."""
    run = start(tmp_path, how, "--launch", launch)
    began = wait_for_hang(run)
    err = finish(run)
    assert time.monotonic() - began < LIMIT_SECONDS + NOTICE_SECONDS
    assert re.search(
        rf"rank 1 on \S+ \(local rank 1\) failed first: hang: no step and no output for \d+ s: {words}", err
    )
    assert f"2 ranks wait in all_reduce of step 3, hanging.py:{line('the line of the collective')}" in err
    assert [event["ranks"] for event in run.events("hang")] == [[1]]
    assert "distributed_c10d.py" in (run.directory / "hang-0.txt").read_text()
    assert "distributed_c10d.py" not in err


def test_rank_that_skips_a_collective(tmp_path: Path) -> None:
    """The rank that has left out a collective is ahead: it waits at another line."""
    err = finish(start(tmp_path, "skips", is_forked=True))
    assert re.search(r"rank 1 on \S+ \(local rank 1\) failed first: hang: .*: rank 1 on \S+ waits in barrier", err)
    assert "2 ranks wait in all_reduce" in err


def test_shapes_that_differ(tmp_path: Path) -> None:
    """All ranks wait at one line: the dumps of PyTorch's flight recorder tell the rank whose shape is another."""
    err = finish(start(tmp_path, "shapes", "--env", f"TORCH_FR_DUMP_TEMP_FILE={tmp_path}/dump-", is_forked=True))
    at = rf"waits? in recv of step 3, hanging.py:{line('the line of all')}"
    odd = rf"rank 1 on \S+ {at} \(flight recorder: all_reduce number 812 of \[\[7\]\]\)"
    others = rf"2 ranks {at} \(flight recorder: all_reduce number 812 of \[\[4\]\]\)"
    assert re.search(rf"failed first: hang: .*: {odd}; {others}", err), err


def test_worker_of_a_loader(tmp_path: Path) -> None:
    """The rank that waits for its loader is named, and the line at which the worker waits."""
    err = finish(start(tmp_path, "worker", is_forked=True))
    at = f"DataLoader.__next__, hanging.py:{line('the loader')}; its child "
    assert re.search(rf"failed first: hang: .*: rank 1 on \S+ waits in {at}", err)
    assert re.search(rf"process \d+, is at hanging.py:{line('the worker')}", err)


@pytest.mark.tier("all")
def test_frozen_worker_of_a_loader(tmp_path: Path) -> None:
    """A worker that is stopped is named with its rank."""
    run = start(tmp_path, "sleeps-not", "--env", "WORKERS=1", "--env", "PAUSE=0.2")
    run.until_started(3)
    pid = next(event["pid"] for event in run.events("started") if event["rank"] == 2)
    children = Path(f"/proc/{pid}/task/{pid}/children")
    run.until(lambda: bool(children.read_text().split()), "the loader has a worker")
    run.kill(int(children.read_text().split()[0]), signal.SIGSTOP)
    err = finish(run)
    assert re.search(r"rank 2 on \S+ \(local rank 2\) failed first: hang: .*DataLoader.__next__", err)
    assert re.search(r"its child \S+, process \d+, is stopped by a signal", err)


@pytest.mark.tier("all")
def test_frozen_agent(tmp_path: Path) -> None:
    """An agent that is stopped is named, with its process and its ranks; a frozen agent cannot end its ranks itself."""
    run = start(tmp_path, "sleeps")
    wait_for_hang(run)
    pid = run.events("agent")[0]["pid"]
    run.kill(pid, signal.SIGSTOP)
    err = finish(run)
    words = (
        rf"the agent on \S+, which runs ranks 0 to 2, has been silent for \d+ s: process {pid} is stopped by a signal"
    )
    assert re.search(f"^echelon: hang: {words}", err, re.MULTILINE)


@pytest.mark.tier("all")
def test_restart_after_a_hang(tmp_path: Path) -> None:
    """--max-restarts starts all ranks again; the last hang ends the run."""
    run = start(tmp_path, "sleeps", "--max-restarts", "1", limit="3")
    err = finish(run)
    assert [event["attempt"] for event in run.events("hang")] == [0, 1]
    assert err.count("failed first: hang") == 2


@pytest.mark.tier("all")
@pytest.mark.parametrize("who", some(["supervisor", "everyone"], 2))
def test_pause_is_no_hang(tmp_path: Path, who: str) -> None:
    """A supervisor that was suspended, alone or with all its processes, takes no silence for a hang."""
    run = start(tmp_path, "sleeps-not", "--env", "PAUSE=0.5", limit="4")
    run.until(lambda: len(run.events("started")) == 3, "the ranks have started")
    time.sleep(2)
    pids = [event["pid"] for kind in ("started", "agent") for event in run.events(kind)]
    pids = [run.supervisor, *(pids if who == "everyone" else [])]
    for pid in pids:
        run.kill(pid, signal.SIGSTOP)
    time.sleep(10)
    for pid in reversed(pids):
        run.kill(pid, signal.SIGCONT)
    code, _, err = run.finish(seconds=60)
    assert code == 0, err
    assert run.events("hang") == []


@pytest.mark.tier("all")
def test_slow_phases_are_no_hang(tmp_path: Path) -> None:
    """Phases of work between steps, each longer than the limit: an evaluation, a child that compiles, a large file."""
    code, _, err = (run := start(tmp_path, "slow", "--env", "SLOW=6", limit="3")).finish(seconds=120)
    assert code == 0, err
    assert run.events("hang") == []


def test_scaled_script(tmp_path: Path) -> None:
    """In a script for one device that echelon scales, the line is the script's, not one of echelon."""
    os.mkfifo(tmp_path / "fifo")
    script = HANGING.with_name("hanging_alone.py")
    run = Run(
        tmp_path, "--hang-timeout", "5", "--check", "off", "--scale", "data", "-n", "2", str(script), is_forked=True
    )
    err = finish(run)
    number = next(n for n, text in enumerate(script.read_text().splitlines(), 1) if "# the line of the rows" in text)
    words = (
        rf"rank 1 on \S+ is at hanging_alone.py:{number} \(os.open.*; rank 0 on \S+ waits in .* of step 5, hanging_al"
    )
    assert re.search(rf"rank 1 on \S+ \(local rank 1\) failed first: hang: .*: {words}", err), err
