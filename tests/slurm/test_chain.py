"""A chain of jobs on a real Slurm: each goes on where the one before was told to save and end."""

import json
import random
import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.cluster import Cluster
from tests.slurm.test_submit import call
from tests.tiers import pick

from echelon.monitor import attempts, recorded

HERE = Path(__file__).parent
PATIENCE_SECONDS = 120.0
WARNINGS = ("USR1", "USR2", "TERM")
NUM_SOAKED = pick(1, all=2, soak=100)

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
    done = warm.run(["-m", "echelon", "run", "-n", "2", "train.py", "3", "0"], cwd=folder)
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
        self.slurm.run("scancel", f"--signal={name}", "--batch", str(job), check=False)  # it may have just ended

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
    chain = Chain(slurm, home, tmp_path / "it's a chain", *CHAIN, arguments=("3", "0.3"))
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
    [attempt] = attempts.read(recorded.read(str(chain.directory)))
    assert (attempt.continued_after, attempt.repeat_seconds) == (saved["step"], 0.0)
    assert (chain.directory / "jobs" / "1" / "report.json").exists()
    assert not (chain.directory / "lease.json").exists()


@pytest.mark.tier("all")
@pytest.mark.parametrize("number", range(NUM_SOAKED))
def test_limit_at_any_moment(slurm: Cluster, home: Path, tmp_path: Path, undisturbed: list[str], number: int) -> None:
    """Whenever the signal comes, and whichever it is, the next job goes on at the saved step with the same losses."""
    chance = random.Random(number)
    chain = Chain(slurm, home, tmp_path, *CHAIN, arguments=("3", "0.15"))
    chain.until("job 1 of 3")
    time.sleep(chance.uniform(0.0, 7.0))
    chain.send(chance.choice(WARNINGS[:2] if number % 3 else WARNINGS), chain.first)
    assert chain.over()["exit_code"] == 0, chain.output()
    assert (chain.folder / "losses.txt").read_text().splitlines() == undisturbed
    begins, ends = chain.records("begin"), chain.records("end")
    assert len(begins) <= 2
    for before, after in zip(ends, begins[1:], strict=False):
        assert before["step"] == after["step"] >= 1
        assert f"continues after step {after['step']}" in chain.output()


@pytest.mark.tier("all")
def test_cancelled_and_killed_jobs_are_followed(
    slurm: Cluster, home: Path, tmp_path: Path, undisturbed: list[str]
) -> None:
    """After scancel of one job, and after a kill without a signal, the next one goes on at the newest checkpoint."""
    options = ("--chain", "until-done", "--max-hours", "1", "--checkpoint-every", "4steps")
    chain = Chain(slurm, home, tmp_path, *options, arguments=("3", "0.3"))
    assert chain.waiting == []
    chain.until("\nstep 6\n")
    slurm.run("scancel", str(chain.first))
    chain.until("\nstep 14\n")
    second = int(chain.records("begin")[1]["job_id"])
    slurm.run("scancel", "--signal=KILL", "--full", str(second))
    assert chain.over()["exit_code"] == 0, chain.output()
    steps = [record["step"] for record in chain.records("begin")]
    assert len(steps) == 3
    assert steps[0] < steps[1] < steps[2]
    assert (chain.folder / "losses.txt").read_text().splitlines() == undisturbed


@pytest.mark.tier("all")
def test_chain_without_progress_stops(slurm: Cluster, home: Path, tmp_path: Path) -> None:
    """Two jobs in a row that end without a new checkpoint end the chain, and it is said."""
    chain = Chain(slurm, home, tmp_path, "--chain", "5", *CHAIN[2:], arguments=("3", "0.3"))
    for number in (1, 2):
        chain.until(f"(?s)job {number} of 5.*\nstep 1\n")
        slurm.run("scancel", "--signal=KILL", "--full", str(chain.records("begin")[-1]["job_id"]))
        slurm.wait(lambda number=number: len(chain.queued()) <= 5 - number, "the end of the job")  # type: ignore[misc]
    assert chain.over()["exit_code"] == 1
    said = " ".join(chain.output().split())
    assert f"error: the last 2 jobs of the chain {chain.name} published no new checkpoint: there is none" in said
    assert "cancelled job" in said
    assert len(chain.records("begin")) == 2


@pytest.mark.tier("all")
def test_chain_that_repeats_more_than_it_advances_stops(slurm: Cluster, home: Path, tmp_path: Path) -> None:
    """A job saves step 8 and dies after 15, the next one too: 8 new steps, and more that are computed again."""
    options = ("--chain", "5", "--max-hours", "1", "--checkpoint-every", "8steps")
    chain = Chain(slurm, home, tmp_path, *options, arguments=("3", "0.5"))
    for number in (1, 2):
        chain.until(f"(?s)job {number} of 5.*\nstep 15\n")
        slurm.run("scancel", "--signal=KILL", "--full", str(chain.records("begin")[-1]["job_id"]))
        slurm.wait(lambda number=number: len(chain.queued()) <= 5 - number, "the end of the job")  # type: ignore[misc]
    assert chain.over()["exit_code"] == 1
    said = " ".join(chain.output().split())
    told = f"error: the last 2 jobs of the chain {chain.name} repeat more than they advance: 8 new steps in "
    again = re.search(re.escape(told) + r"\d+ s; (\d+) steps in \d+ s that were not saved; 0 s of repeating", said)
    assert again is not None, said
    assert 8 < int(again[1]) <= 14
    assert "hint: echelon submit --resume echelon-runs/" in said
    assert "a shorter --checkpoint-every wastes less" in said
    assert len(chain.records("begin")) == 2


@pytest.mark.tier("all")
def test_second_job_is_told_who_holds_the_run(slurm: Cluster, home: Path, tmp_path: Path) -> None:
    """Who starts a second run in the same directory is told which job works there."""
    chain = Chain(slurm, home, tmp_path, *CHAIN, arguments=("3", "0.2"))
    chain.until("\nstep 2\n")
    done = call(
        slurm,
        home,
        tmp_path,
        "run",
        "--run-dir",
        str(chain.directory),
        "--checkpoint-every",
        "9m",
        "train.py",
        "3",
        "0",
    )
    said = " ".join(done.stderr.split())
    assert done.returncode == 2, said
    assert f"error: job {chain.first} on " in said
    assert "holds the run directory" in said
    assert f"scancel {chain.first}" in said
    slurm.run("scancel", f"--name={chain.name}")
    slurm.wait(lambda: not chain.queued(), "an empty queue")


@pytest.mark.tier("all")
def test_edited_script_stops_the_chain(slurm: Cluster, home: Path, tmp_path: Path) -> None:
    """A script that was edited between two jobs is named with the repair, and no training goes on by accident."""
    chain = Chain(slurm, home, tmp_path, *CHAIN, arguments=("3", "0.3"))
    chain.until("\nstep 3\n")
    (tmp_path / "train.py").write_text((tmp_path / "train.py").read_text() + "\n# edited\n")
    chain.send("USR2", chain.first)
    assert chain.over()["exit_code"] == 2
    said = " ".join(chain.output().split())
    assert f"error: train.py was edited since the job before this one of the chain {chain.name}" in said
    assert "hint: echelon submit --resume-anyway --resume echelon-runs/" in said
    assert f"cancelled job {chain.waiting[1]}" in said
    assert slurm.job(chain.waiting[0])["ExitCode"] == "2:0"
    resumed = ("submit", "--gpus", "2", "-t", "5", *CHAIN, "--resume", str(chain.directory), "--dry-run")
    done = call(slurm, home, tmp_path, *resumed, "train.py", "3", "0.3")
    assert (done.returncode, "train.py was edited" in done.stderr) == (2, True), done.stderr
    done = call(slurm, home, tmp_path, *resumed, "--resume-anyway", "train.py", "3", "0.3")
    assert done.returncode == 0, done.stderr


@pytest.mark.tier("all")
def test_edit_is_a_note_with_resume_anyway(slurm: Cluster, home: Path, tmp_path: Path, undisturbed: list[str]) -> None:
    """With --resume-anyway the chain says what was edited, and goes on."""
    chain = Chain(slurm, home, tmp_path, *CHAIN, "--resume-anyway", arguments=("3", "0.3"))
    chain.until("\nstep 3\n")
    (tmp_path / "train.py").write_text((tmp_path / "train.py").read_text() + "\n# edited\n")
    chain.send("USR1", chain.first)
    assert chain.over()["exit_code"] == 0, chain.output()
    assert "note: train.py was edited since the job before this one" in " ".join(chain.output().split())
    assert (tmp_path / "losses.txt").read_text().splitlines() == undisturbed


def test_hours_have_a_cap(slurm: Cluster, home: Path, tmp_path: Path) -> None:
    """A further job that could exceed --max-hours does not start; the message has the command that goes on."""
    options = ("--chain", "3", "--max-hours", "0.084", "--checkpoint-every", "50steps")
    chain = Chain(slurm, home, tmp_path, *options, arguments=("3", "0.3"))
    assert chain.waiting == []
    chain.until("\nstep 3\n")
    chain.send("USR1", chain.first)
    assert chain.over()["exit_code"] == 85
    said = " ".join(chain.output().split())
    assert "would exceed --max-hours 0.084" in said
    assert "hint: echelon submit --resume echelon-runs/" in said


HANDLER = """
import os, signal, sys, time
def save(number, frame):
    open("saved", "w").close()
    sys.exit(0)
if os.path.exists("saved"):
    print("goes on by itself", flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
print("ready", flush=True)
time.sleep(300)
"""


def test_script_with_a_handler_is_in_charge(slurm: Cluster, home: Path, tmp_path: Path) -> None:
    """A script that handles the signal saves by itself, also where its exit code is 0; the next job starts it again."""
    options = ("--chain", "3", "--max-hours", "1")
    chain = Chain(slurm, home, tmp_path, *options, script=HANDLER)
    chain.until("ready")
    chain.send("USR1", chain.first)
    assert chain.over()["why"] == "the training has ended"
    assert "the script has its own handler for it, so the script is in charge of saving" in chain.output()
    assert "goes on by itself" in chain.output()
    assert len(chain.records("begin")) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--chain", "5", "--checkpoint-every", "9m"), "--chain 5 --max-hours 10"),
        (("--chain", "5", "--max-hours", "1", "--checkpoint-every", "9m"), "--max-hours 1 is less than the time limit"),
        (("--chain", "5", "--max-hours", "x", "--checkpoint-every", "9m"), "--max-hours x: give a number of hours"),
        (("--chain", "1", "--max-hours", "9", "--checkpoint-every", "9m"), "--chain 1: give a number of jobs from 2"),
        (("--chain", "5", "--max-hours", "9"), "--checkpoint-every is missing"),
        (("--max-hours", "9"), "--chain is missing"),
        (("--resume-anyway",), "--chain is missing"),
        (("--chain", "5", "--max-hours", "9", "--plain"), "--chain does not go with --plain"),
        (("--chain", "5", "--max-hours", "9", "--wait"), "--chain does not go with --wait"),
    ],
)
def test_bad_options(slurm: Cluster, home: Path, tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    """What a chain cannot do is refused before anything is queued, with the repair."""
    shutil.copy(HERE / "chained.py", tmp_path / "train.py")
    done = call(slurm, home, tmp_path, "submit", "--gpus", "2", "-t", "120", *options, "train.py")
    assert done.returncode == 2, done.stderr
    assert said in " ".join(done.stderr.split())
    assert "hint:" in done.stderr
    assert not (tmp_path / "echelon-runs").exists()


@pytest.mark.tier("all")
def test_time_limit_itself(slurm: Cluster, home: Path, tmp_path: Path, undisturbed: list[str]) -> None:
    """Without a signal from anybody a job saves before its limit, and keeps half of a short job in reserve."""
    chain = Chain(slurm, home, tmp_path, "--chain", "9", *CHAIN[2:], "-t", "1", arguments=("3", "1.7"))
    assert chain.over()["exit_code"] == 0, chain.output()
    begins, ends = chain.records("begin"), chain.records("end")
    assert len(begins) > 1
    for begin, end, follower in zip(begins, ends, begins[1:], strict=False):
        assert end["time"] - begin["time"] < 45  # Slurm may send its signal too early, but not too late
        assert begin["step"] < end["step"] == follower["step"]
    assert (tmp_path / "losses.txt").read_text().splitlines() == undisturbed
