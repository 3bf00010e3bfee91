"""`echelon submit` on a real Slurm: what is learned, planned, written, queued, followed."""

import json
import os
import pty
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.runs import ECHELON
from tests.tiers import in_all

HERE = Path(__file__).parent
REPORT = str(HERE / "report.py")

pytestmark = pytest.mark.slurm

REQUEUES = """
import os, subprocess, time
open("ran", "a").write("x")
if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
    subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def learned(slurm: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Offer a folder with what `echelon machines learn` wrote of the cluster."""
    home = tmp_path_factory.mktemp("home")
    done = call(slurm, home, home, "machines", "learn")
    assert done.returncode == 0, done.stderr
    return home


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Offer a folder whose name needs quoting everywhere."""
    path = tmp_path / 'it\'s a "folder" # $HOME'
    path.mkdir()
    yield path


def call(slurm: Cluster, home: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an echelon command as a user of the cluster whose configuration lies in `home`."""
    environ = {**slurm.environ, "XDG_CONFIG_HOME": str(home)}
    return subprocess.run(
        [*ECHELON, *arguments], cwd=folder, env=environ, capture_output=True, text=True, timeout=150, check=False
    )


def run_directory(folder: Path) -> Path:
    (found,) = (folder / "echelon-runs").iterdir()
    return found


def reports(folder: Path) -> dict[int, dict[str, object]]:
    return {int(path.stem): json.loads(path.read_text()) for path in folder.glob("*.json")}


def test_learned_machine_plans_and_submits(slurm: Cluster, learned: Path, folder: Path) -> None:
    """After one command an unknown machine is planned for, and a job of 16 ranks runs on two of its nodes."""
    done = call(slurm, learned, folder, "plan", "--gpus", "16", "--why")
    assert done.returncode == 0, done.stderr
    assert "nodes" in done.stdout
    done = call(slurm, learned, folder, "submit", "--gpus", "16", "-t", "5", "--wait", REPORT, str(folder))
    assert done.returncode == 0, done.stderr
    found = reports(folder)
    assert len(found) == 16
    assert {str(found[rank]["environ"]["LOCAL_WORLD_SIZE"]) for rank in found} == {"8"}  # type: ignore[index]
    kept = run_directory(folder)
    assert {"job.sh", "booking.json", "slurm.out", "plan.json", "report.json"} <= {path.name for path in kept.iterdir()}


def test_follow_shows_the_output_and_the_exit_code(slurm: Cluster, learned: Path, folder: Path) -> None:
    """The output of rank 0 appears, and the command ends as the job did."""
    (folder / "train.py").write_text("import os, sys\nprint('loss', 0.5)\nsys.exit(3)\n")
    done = call(slurm, learned, folder, "submit", "--gpus", "1", "-t", "5", "--follow", "train.py")
    assert done.returncode == 3, done.stderr
    assert "loss 0.5" in done.stdout
    assert "ended with exit code 3" in done.stdout
    job = done.stderr.partition("job ")[2].partition(":")[0]
    assert f"echelon: job {job} failed with exit code 3: rank 0 on " in done.stderr


def test_wait_says_how_the_job_stands_and_why_it_failed(slurm: Cluster, learned: Path, folder: Path) -> None:
    """A job that waits for another says so, then where it runs, then why it failed and where its output is."""
    (folder / "first.py").write_text("import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.1)\n")
    (folder / "second.py").write_text("raise ValueError('no such sample')\n")
    done = call(slurm, learned, folder, "submit", "--gpus", "1", "-t", "5", "--json", "first.py")
    number = json.loads(done.stdout)["job_id"]
    end_first = threading.Thread(target=_go_once_two_are_queued, args=(folder,))
    end_first.start()
    done = call(slurm, learned, folder, "submit", "--gpus", "1", "-t", "5", "--wait", "--after", number, "second.py")
    end_first.join()
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if line.startswith("echelon: job ")]
    assert "waits: it waits for another job to end" in done.stderr
    assert "│ ValueError: no such sample" in done.stderr
    assert "failed with exit code 1" in said[-1]
    assert "the output of the job is in echelon-runs/" in done.stderr


def _go_once_two_are_queued(folder: Path) -> None:
    """Let the first job end some time after the second one was submitted: `submit --wait` looks at once."""
    deadline = time.monotonic() + 60
    while len(list(folder.glob("echelon-runs/*/booking.json"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(4)
    (folder / "go").touch()


def test_after_a_job_that_is_not_there(slurm: Cluster, learned: Path, folder: Path) -> None:
    """A number that is no job's, and a job that failed, are errors before anything is queued."""
    (folder / "train.py").write_text("raise SystemExit(4)\n")
    done = call(slurm, learned, folder, "submit", "--gpus", "1", "-t", "5", "--after", "9999999", "train.py")
    assert (done.returncode, "Slurm knows no job 9999999" in done.stderr) == (2, True), done.stderr
    assert not (folder / "echelon-runs").exists()
    done = call(slurm, learned, folder, "submit", "--gpus", "1", "-t", "5", "--wait", "train.py")
    number = done.stderr.partition("job ")[2].partition(":")[0]
    done = call(slurm, learned, folder, "submit", "--gpus", "1", "-t", "5", "--after", number, "train.py")
    assert (done.returncode, "a job after it would never start" in done.stderr) == (2, True), done.stderr


def test_unknown_cluster_is_learned_at_once(slurm: Cluster, tmp_path: Path) -> None:
    """With --learn the first submission on a cluster that nobody has described works; without, nobody is asked."""
    (tmp_path / "train.py").write_text("print('trained')\n")
    line = ("submit", "--gpus", "1", "-t", "5", "--dry-run")
    done = call(slurm, tmp_path / "home", tmp_path, *line, "train.py")
    assert (done.returncode, "echelon submit --learn" in done.stderr) == (2, True), done.stderr
    done = call(slurm, tmp_path / "home", tmp_path, *line, "--learn", "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash\n")
    assert list((tmp_path / "home").rglob("*.toml"))


def test_person_at_a_terminal_is_asked(slurm: Cluster, tmp_path: Path) -> None:
    """Who sits at a terminal may answer yes, and the cluster is learned before the job is planned."""
    (tmp_path / "train.py").touch()
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "r+b", buffering=0) as person, os.fdopen(theirs, "rb", buffering=0) as terminal:
        person.write(b"y\n")
        done = subprocess.run(
            [*ECHELON, "submit", "--gpus", "1", "-t", "5", "--dry-run", "train.py"], cwd=tmp_path, stdin=terminal,
            env={**slurm.environ, "XDG_CONFIG_HOME": str(tmp_path / "home")}, stdout=subprocess.PIPE, stderr=terminal,
            timeout=150, check=False,
        )  # fmt: skip
        assert b"Learn it from its Slurm now, and continue? [Y/n]" in os.read(person.fileno(), 1 << 16)
    assert done.returncode == 0
    assert done.stdout.startswith(b"#!/bin/bash\n")


def test_arguments_pass_byte_for_byte(slurm: Cluster, learned: Path, folder: Path) -> None:
    """Spaces, quotes, dollars, hashes, newlines and bytes that are no text reach the script as they are."""
    (folder / "train.py").write_text(
        "import os, sys\nopen('got', 'wb').write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))\n"
    )
    odd = ["a b", "it's", '"', "$(touch /tmp/no)", "# x", "two\nlines", "", "\udcff", "*", "-n"]
    done = call(slurm, learned, folder, "submit", "--gpus", "1", "-t", "5", "--wait", "train.py", *odd)
    assert done.returncode == 0, done.stderr
    assert (folder / "got").read_bytes() == b"\0".join(os.fsencode(word) for word in odd)


@pytest.mark.tier("all")
def test_after_waits_for_the_other_job(slurm: Cluster, learned: Path, folder: Path) -> None:
    """A job that comes after another starts when that one has ended well."""
    (folder / "first.py").write_text("import time\ntime.sleep(2)\nopen('first', 'w').close()\n")
    (folder / "second.py").write_text("import os, sys\nsys.exit(0 if os.path.exists('first') else 9)\n")
    done = call(slurm, learned, folder, "submit", "--gpus", "1", "-t", "5", "--json", "first.py")
    number = json.loads(done.stdout)["job_id"]
    done = call(slurm, learned, folder, "submit", "--gpus", "1", "-t", "5", "--wait", "--after", number, "second.py")
    assert done.returncode == 0, done.stderr


def test_test_asks_and_leaves_nothing(slurm: Cluster, learned: Path, folder: Path) -> None:
    """With --test Slurm says when the job would start, and no job and no directory stays."""
    (folder / "train.py").touch()
    done = call(slurm, learned, folder, "submit", "--gpus", "1", "-t", "5", "--test", "train.py")
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stdout
    assert list((folder / "echelon-runs").iterdir()) == []


def test_refusal_of_slurm_is_one_error(slurm: Cluster, learned: Path, folder: Path) -> None:
    """What Slurm refuses although it was planned is told in Slurm's words, with exit code 2."""
    (folder / "train.py").touch()
    done = call(slurm, learned, folder, "submit", "--gpus", "1", "-t", "5", "--reservation", "no-such", "train.py")
    assert done.returncode == 2
    assert "Slurm refuses the job" in done.stderr
    assert "reservation" in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_dry_run_does_nothing(slurm: Cluster, learned: Path, folder: Path) -> None:
    """A dry run prints the script and leaves no file."""
    (folder / "train.py").touch()
    done = call(slurm, learned, folder, "submit", "--gpus", "8", "-t", "5", "--dry-run", "train.py")
    assert done.stdout.startswith("#!/bin/bash\n")
    assert [path.name for path in folder.iterdir()] == ["train.py"]


@pytest.mark.parametrize("layout", [in_all("torchrun"), "tasks"])
def test_plain_script_needs_no_echelon(slurm: Cluster, learned: Path, folder: Path, layout: str) -> None:
    """A plain script gives the same ranks on a machine that has never heard of echelon."""
    done = call(
        slurm, learned, folder, "submit", "--gpus", "4", "--nodes", "2", "-t", "5", "--plain", "--layout", layout,
        "--dry-run", REPORT, str(folder),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "echelon run" not in done.stdout
    programs = folder / "bin"
    programs.mkdir()
    for name in ("python", "torchrun"):
        (programs / name).symlink_to(Path(sys.prefix) / "bin" / name)
    (programs / "echelon.py").write_text("raise ImportError('nobody has installed echelon here')\n")
    script = "\n".join(line for line in done.stdout.splitlines() if not line.startswith(("source ", "module ")))
    script = script.replace("--output=", "--output=/dev/null --comment=")
    (folder / "job.sh").write_text(script)
    environ = {**slurm.environ, "PATH": f"{programs}:{slurm.environ['PATH']}", "PYTHONPATH": str(programs)}
    job = subprocess.run(
        ["sbatch", "--parsable", "--wait", "job.sh"], cwd=folder, env=environ, capture_output=True, text=True,
        timeout=150, check=False,
    )  # fmt: skip
    assert job.returncode == 0, job.stderr
    found = reports(folder)
    assert sorted(found) == [0, 1, 2, 3]
    for rank, report in found.items():
        environ = report["environ"]  # type: ignore[assignment]
        assert (environ["RANK"], environ["WORLD_SIZE"], environ["LOCAL_RANK"]) == (str(rank), "4", str(rank % 2))
    assert len({str(report["environ"]["MASTER_PORT"]) for report in found.values()}) == 1  # type: ignore[index]


def test_as_many_ranks_as_were_booked(slurm: Cluster, learned: Path, folder: Path) -> None:
    """On a whole node of eight devices a job for four has four ranks, and its batch is divided by four."""
    done = call(
        slurm, learned, folder, "submit", "--gpus", "4", "--exclusive", "-t", "5", "--global-batch", "32", "--wait",
        REPORT, str(folder), "{batch_per_rank}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = reports(folder)
    assert sorted(found) == [0, 1, 2, 3]
    for report in found.values():
        assert report["environ"]["ECHELON_BATCH_PER_RANK"] == "8"  # type: ignore[index]
        assert bytes.fromhex(report["argv"][1]) == b"8"  # type: ignore[index]


def test_variables_that_would_overrule_the_script_are_not_passed_on(
    slurm: Cluster, learned: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was planned and priced is what is submitted, whatever the shell has set for Slurm."""
    (folder / "train.py").write_text("import os\nopen(os.environ['SLURM_JOB_PARTITION'], 'w').close()\n")
    slurm_environ = {**slurm.environ, "SBATCH_PARTITION": "dev-g", "SBATCH_TIMELIMIT": "1"}
    monkeypatch.setattr(Cluster, "environ", property(lambda self: slurm_environ))
    done = call(slurm, learned, folder, "submit", "--gpus", "1", "-p", "small-g", "-t", "5", "--wait", "train.py")
    assert done.returncode == 0, done.stderr
    assert "note: SBATCH_PARTITION would override the script" in done.stderr
    assert (folder / "small-g").exists()


@pytest.mark.tier("all")
def test_requeued_job_has_a_directory_of_its_own(slurm: Cluster, learned: Path, folder: Path) -> None:
    """A job that Slurm starts again does not stumble over its first run."""
    (folder / "train.py").write_text(REQUEUES)
    done = call(slurm, learned, folder, "submit", "--gpus", "1", "-t", "5", "--json", "train.py")
    number = int(json.loads(done.stdout)["job_id"])
    slurm.wait(lambda: len(list((folder / "echelon-runs").iterdir())) == 2, "a second run directory", timeout=180)
    assert slurm.wait_job(number, timeout=120).state == "COMPLETED"
    assert (folder / "ran").read_text() == "xx"


@pytest.mark.tier("all")
def test_requeued_job_goes_on_at_its_checkpoint(slurm: Cluster, learned: Path, folder: Path) -> None:
    """A training that is saved does not begin anew when Slurm starts its job again; each step is done once."""
    source = (Path(__file__).parent / "chained.py").read_text()
    requeue = """
        if step == 7 and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
            while not [name for name in os.listdir(os.environ["ECHELON_RUN_DIR"] + "/checkpoints") if name[0] == "s"]:
                time.sleep(0.1)
            print("requeues", flush=True)
            time.sleep(300)
"""
    (folder / "train.py").write_text(source.replace('        print("step"', f'{requeue}        print("step"'))
    line = ("submit", "--gpus", "1", "-t", "5", "--json", "--checkpoint-every", "5steps", "train.py", "3", "0")
    told = json.loads(call(slurm, learned, folder, *line).stdout)
    number, output = int(told["job_id"]), Path(told["run_directory"], "slurm.out")
    slurm.wait(lambda: output.exists() and "requeues" in output.read_text(), "it stands still", timeout=90)
    slurm.run("scontrol", "requeue", str(number))
    assert slurm.wait_job(number, timeout=240).state == "COMPLETED"
    text = output.read_text()
    assert "continues after step 5, from a checkpoint" in text
    steps = [int(step) for step in re.findall(r"^step (\d+)$", text, re.MULTILINE)]
    assert steps == [*range(1, 7), *range(6, 25)]  # step 6 was computed again


def test_missing_slurm_is_named(learned: Path, folder: Path) -> None:
    """Where Slurm's commands are not installed, one error says so."""
    (folder / "train.py").touch()
    environ = {**os.environ, "XDG_CONFIG_HOME": str(learned), "PATH": "/nonexistent"}
    name = next((learned / "echelon" / "machines").glob("*.toml")).stem
    done = subprocess.run(
        [*ECHELON, "submit", "--machine", name, "--gpus", "1", "-t", "5", "train.py"], cwd=folder, env=environ,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode in (1, 2)
    assert "is not installed here" in done.stderr
    assert "Traceback" not in done.stderr


def test_plain_script_makes_no_copies(slurm: Cluster, learned: Path, folder: Path) -> None:
    """A script for one device would be trained once by each rank: refused, unless that is what was asked for."""
    (folder / "train.py").write_text("import torch\nloss = model(batch)\nloss.backward()\n")
    words = ("submit", "--gpus", "4", "-t", "5", "--plain", "--dry-run")
    done = call(slurm, learned, folder, *words, "train.py")
    assert done.returncode == 2
    assert "train.py trains on one device" in done.stderr
    assert "submit without --plain" in done.stderr
    assert call(slurm, learned, folder, *words, "--scale", "off", "train.py").returncode == 0


def test_worst_mistake_is_said(slurm: Cluster, learned: Path, folder: Path) -> None:
    """What is wrong in the script is said in one line before it waits in a queue; a script without is no word."""
    words = ("submit", "--gpus", "2", "-t", "5", "--dry-run")
    (folder / "train.py").write_text("import torch\nmodel = torch.nn.DataParallel(torch.nn.Linear(2, 2))\n")
    done = call(slurm, learned, folder, *words, "train.py")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "lint" in line]
    assert line.startswith("echelon: lint: warning ECH517 in train.py:2: DataParallel")
    (folder / "train.py").write_text("import torch\nprint(torch.ones(1))\n")
    assert "lint" not in call(slurm, learned, folder, *words, "train.py").stderr
