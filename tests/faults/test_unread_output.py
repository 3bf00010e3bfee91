"""What ranks print while an agent or a supervisor is stopped by a signal is in their logs and on the console."""

import re
import signal
import time
from pathlib import Path

import pytest
from tests.faults import slow_training
from tests.runs import Run
from tests.tiers import in_all

PRINTS = """
import os, sys, time
number = 0
while not os.path.exists("enough"):
    number += 1
    print("line", number, os.environ["ECHELON_ATTEMPT"], flush=True)
    with open("printed-" + os.environ["RANK"], "w") as file:
        file.write(str(number))
    time.sleep(0.02)
"""
TRAINS = slow_training.text(epochs=6, pause=0.1)
PRINTED_MEANWHILE = 60

pytestmark = pytest.mark.timeout(300)


def printed(folder: Path, rank: int) -> int:
    """Return how many lines a rank has printed, or 0."""
    try:
        return int((folder / f"printed-{rank}").read_text() or 0)
    except FileNotFoundError:
        return 0


def numbers(text: str, prefix: str = "") -> set[int]:
    return {int(one) for one in re.findall(rf"^{re.escape(prefix)}line (\d+)", text, re.MULTILINE)}


def logged(run: Run, rank: int) -> str:
    return "".join(path.read_text() for path in sorted(run.directory.glob(f"logs/attempt-*/rank-{rank}.log")))


@pytest.mark.parametrize("shown", ["0", in_all("all")])
def test_agent_is_stopped_and_killed(tmp_path: Path, shown: str) -> None:
    """Its guard writes the rest of the logs, from which the supervisor shows what it has not heard of."""
    (tmp_path / "prints.py").write_text(PRINTS)
    run = Run(tmp_path, "-n", "2", "--show", shown, "prints.py")
    run.until(lambda: printed(tmp_path, 0) > 5, "lines are printed")
    agent = int(run.events("agent")[0]["pid"])
    run.kill(agent, signal.SIGSTOP)
    before = printed(tmp_path, 0)
    run.until(lambda: printed(tmp_path, 0) > before + PRINTED_MEANWHILE, "more lines are printed")
    run.kill(agent)
    code, out, err = run.finish()
    assert code != 0
    assert "lost agent" in err
    for rank in range(2):
        wanted = set(range(1, printed(tmp_path, rank) + 1))
        assert numbers(logged(run, rank)) >= wanted
        if shown == "all":
            assert numbers(out, f"[{rank}] ") >= wanted
    if shown == "0":
        assert numbers(out) >= set(range(1, printed(tmp_path, 0) + 1))
        assert len(out.splitlines()) == len(set(out.splitlines()))


@pytest.mark.tier("all")
def test_supervisor_is_stopped_and_killed(tmp_path: Path) -> None:
    """The next supervisor shows what ranks of the one before have printed, and then those of the next attempt."""
    (tmp_path / "prints.py").write_text(PRINTS)
    run = Run(tmp_path, "-n", "2", "--max-restarts", "1", "prints.py")
    run.until(lambda: printed(tmp_path, 0) > 5, "lines are printed")
    run.kill(run.supervisor, signal.SIGSTOP)
    before = printed(tmp_path, 0)
    run.until(lambda: printed(tmp_path, 0) > before + PRINTED_MEANWHILE, "more lines are printed")
    run.kill(run.supervisor)
    run.until(lambda: len(run.events("started")) == 4, "another one has started the ranks")
    time.sleep(0.5)
    (tmp_path / "enough").touch()
    code, out, err = run.finish()
    assert code == 0, err
    lines = out.splitlines()
    assert lines == logged(run, 0).splitlines()
    assert len(lines) == len(set(lines))


@pytest.mark.tier("all")
@pytest.mark.parametrize("what", ["agent", "supervisor"])
def test_nothing_of_a_training_is_lost(tmp_path: Path, what: str) -> None:
    """The one that is stopped is replaced, the training goes on from its newest state, and no line is missing."""
    (tmp_path / "trains.py").write_text(TRAINS)
    run = Run(tmp_path, "-n", "2", "--checkpoint-every", "10steps", "trains.py")
    log = run.directory / "logs/attempt-0/rank-0.log"
    run.until(lambda: log.exists() and "line 20 " in log.read_text(), "the 20th step is done")
    run.kill(int(run.events(what)[-1]["pid"]), signal.SIGSTOP)
    code, out, err = run.finish(seconds=200)
    assert code == 0, err
    assert "continues after step" in err
    assert numbers(out) == numbers(logged(run, 0)) == set(range(1, 121))
