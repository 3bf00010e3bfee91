"""The report of a run whose processes were killed loses at most two seconds of its steps."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.runs import ECHELON, Run
from tests.tiers import in_all

LOST_SECONDS = 2.0
"""A sample is written at most so long before the end; a busy machine may be late by as much."""
COUNTS = """
import time, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with open("steps-of-rank", "w", buffering=1) as file:
    for step in range(1, 100000):
        model(torch.ones(8, 4)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print(time.time(), step, file=file)
        time.sleep(0.02)
"""


@pytest.mark.parametrize("killed", [in_all("the supervisor and its keeper"), "the agent"])
def test_steps_until_the_end(tmp_path: Path, killed: str) -> None:
    (tmp_path / "train.py").write_text(COUNTS)
    run = Run(tmp_path, "-n", "1", "--scale", "off", "train.py", is_forked=killed == "the agent")
    run.until_started(1)
    steps = tmp_path / "steps-of-rank"
    while not steps.exists() or len(steps.read_text().splitlines()) < 200:
        assert run.process.poll() is None
        time.sleep(0.05)
    at = time.time()
    if killed == "the agent":
        run.kill(run.events("agent")[0]["pid"])
    else:
        os.kill(run.process.pid, signal.SIGKILL)
        run.kill(run.supervisor)
    run.finish()
    rows = [line.split() for line in steps.read_text().splitlines() if line.count(" ") == 1]
    known = sum(float(moment) <= at - 2 * LOST_SECONDS for moment, _ in rows)
    done = subprocess.run(
        [*ECHELON, "report", "--json", "run"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    (told,) = json.loads(done.stdout)["runs"]
    assert known <= told["steps"]["number"] <= len(rows)
    assert told["training"]["parts"]["backward"] > 0
