"""A chain of jobs on a real Slurm: each goes on where the one before was told to save and end."""

import json
import os
import random
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import Cluster
from tests.runs import ECHELON
from tests.slurm.test_submit import call

HERE = Path(__file__).parent
PATIENCE_SECONDS = 120.0
WARNINGS = ("USR1", "USR2", "TERM")
NUM_SOAKED = 100 if os.environ.get("ECHELON_SOAK") == "1" else 2

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def home(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Offer a folder with what `echelon machines learn` wrote of the cluster."""
    folder = tmp_path_factory.mktemp("home")
    done = call(slurm, folder, folder, "machines", "learn")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the losses of a run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    shutil.copy(HERE / "chained.py", folder / "train.py")
    command = [*ECHELON, "run", "-n", "2", "train.py", "3", "0"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return (folder / "losses.txt").read_text().splitlines()


class Chain:
    """A chain that was submitted, and what its run directory says."""

    def __init__(
        self, slurm: Cluster, home: Path, folder: Path, *options: str, script: str = "", arguments: tuple[str, ...] = ()
    ) -> None:
        self.slurm = slurm
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text(script or (HERE / "chained.py").read_text())
        line = ("submit", "--gpus", "2", "-t", "5", "--json", *options, "train.py", *arguments)
        done = call(slurm, home, folder, *line)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        self.first, self.waiting = int(told["job_id"]), [int(number) for number in told["waiting"]]
        self.directory = Path(told["run_directory"])
        self.name = told["chain"]

    def records(self, event: str) -> list[dict[str, Any]]:
        try:
            lines = (self.directory / "chain.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [record for record in map(json.loads, lines) if record["event"] == event]

    def output(self) -> str:
        try:
            return (self.directory / "slurm.out").read_text()
        except FileNotFoundError:
            return ""

    def until(self, said: str) -> None:
        self.slurm.wait(lambda: re.search(said, self.output()) is not None, f"{said!r} in {self.output()}", timeout=90)

    def send(self, name: str, job: int) -> None:
        self.slurm.run("scancel", f"--signal={name}", "--batch", str(job))

    def over(self) -> dict[str, Any]:
        """Wait for the end of the chain, and of its jobs in the queue; return why it ended."""
        self.slurm.wait(lambda: bool(self.records("over")), "the end of the chain", timeout=PATIENCE_SECONDS)
        self.slurm.wait(lambda: not self.queued(), "an empty queue", timeout=30)
        return self.records("over")[0]

    def queued(self) -> list[str]:
        return self.slurm.run("squeue", "--noheader", "--format=%i", f"--name={self.name}").stdout.split()

    def steps(self) -> list[int]:
        return [int(step) for step in re.findall(r"^step (\d+)$", self.output(), re.MULTILINE)]


CHAIN = ("--chain", "3", "--max-hours", "1", "--checkpoint-every", "50steps")


def test_next_job_goes_on_at_the_saved_step(slurm: Cluster, home: Path, tmp_path: Path, undisturbed: list[str]) -> None:
    """Two jobs train as one: no step is lost or done twice, trackers have one run, and the third job is cancelled."""
    chain = Chain(slurm, home, tmp_path / "it's a chain", *CHAIN, arguments=("3", "0.1"))
    chain.until("\nstep 7\n")
    chain.send("USR1", chain.first)
    assert chain.over()["why"] == "the training has ended"
    first, second = chain.records("begin")
    saved = chain.records("end")[0]
    assert (saved["outcome"], saved["exit_code"], second["step"]) == ("handed over", 85, saved["step"])
    assert first["step"] == -1
    assert saved["step"] >= 7
    assert chain.steps() == list(range(1, 25))
    assert (chain.folder / "losses.txt").read_text().splitlines() == undisturbed
    assert (chain.folder / "trackers.txt").read_text().split() == [chain.name, "allow", chain.name]
    assert f"cancelled job {chain.waiting[1]}, which waited" in chain.output()
    assert slurm.job(chain.first)["ExitCode"] == "0:0"
    assert (chain.directory / "jobs" / "1" / "report.json").exists()
    assert not (chain.directory / "lease.json").exists()


@pytest.mark.parametrize("number", range(NUM_SOAKED))
def test_limit_at_any_moment(slurm: Cluster, home: Path, tmp_path: Path, undisturbed: list[str], number: int) -> None:
    """Whenever the signal comes, and whichever it is, the next job goes on at the saved step with the same losses."""
    chance = random.Random(number)
    chain = Chain(slurm, home, tmp_path, *CHAIN, arguments=("3", "0.1"))
    chain.until("job 1 of 3")
    time.sleep(chance.uniform(1.0, 9.0))
    chain.send(chance.choice(WARNINGS[:2] if number % 3 else WARNINGS), chain.first)
    assert chain.over()["exit_code"] == 0, chain.output()
    assert (chain.folder / "losses.txt").read_text().splitlines() == undisturbed
    begins, ends = chain.records("begin"), chain.records("end")
    assert len(begins) <= 2
    for before, after in zip(ends, begins[1:], strict=False):
        assert before["step"] == after["step"] >= 1
        assert f"continues after step {after['step']}" in chain.output()
