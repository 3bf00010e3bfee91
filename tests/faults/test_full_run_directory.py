"""The disk of a run directory is full, or read-only, and then a process is lost: the training still goes on."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults import slow_training
from tests.runs import Run

from echelon.launch.run_directory import RESERVE, RunDirectory

NUM_EPOCHS = 4
TRAINS = slow_training.text(epochs=NUM_EPOCHS, pause=0.05)
NUM_STEPS = NUM_EPOCHS * slow_training.STEPS_OF_AN_EPOCH

pytestmark = pytest.mark.timeout(300)


def mounted(line: "list[str]") -> None:
    """Mount, which only root can do; skip the test where it is impossible."""
    if os.geteuid() != 0 or subprocess.run(["mount", *line], check=False, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of eight megabytes; all that is mounted below is unmounted with it."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted(["-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)])
    yield path
    subprocess.run(["umount", "--recursive", "--lazy", str(path)], check=True)


def started(disk: Path) -> Run:
    """Return a run on this disk that has saved its tenth step; nothing is kept in memory."""
    (disk / "train.py").write_text(TRAINS)
    environ = {**os.environ, "ECHELON_MEMORY_FOLDER": ""}
    run = Run(disk, "-n", "2", "--checkpoint-every", "10steps", "--max-restarts", "2", "train.py", environ=environ)
    run.until(lambda: (run.directory / "checkpoints/step-000000010").exists(), "a checkpoint is there")
    return run


def fill(disk: Path) -> None:
    """Write until nothing more fits."""
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 10)):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC


def pid_of(run: Run, what: str) -> int:
    return {"agent": int(run.events("agent")[-1]["pid"]), "supervisor": run.supervisor}[what]


def assert_goes_on(run: Run, what: str) -> None:
    """Assert that the training ends well after the loss of a process, from a checkpoint of before."""
    run.kill(pid_of(run, what))
    code, out, err = run.finish(seconds=200)
    assert code == 0, err
    assert f"lost {what}" in err
    assert "continues after step" in err
    assert {int(line.split()[1]) for line in out.splitlines()} == set(range(1, NUM_STEPS + 1))
    assert "Traceback" not in err
    assert (run.directory / "report.json").exists()
    assert not (run.directory / RESERVE).exists()
    assert run.left_behind(seconds=5.0) == []


@pytest.mark.tier("all")
@pytest.mark.parametrize("what", ["agent", "supervisor"])
def test_full_disk_and_a_lost_process(disk: Path, what: str) -> None:
    """What is needed for another attempt has a reserve."""
    run = started(disk)
    fill(disk)
    assert_goes_on(run, what)


@pytest.mark.tier("all")
@pytest.mark.parametrize("what", ["agent", "supervisor"])
def test_read_only_checkpoints_and_a_lost_process(disk: Path, what: str) -> None:
    """The checkpoints of before are used, and each save that fails has a line."""
    run = started(disk)
    folder = str(run.directory / "checkpoints")
    mounted(["--bind", folder, folder])
    mounted(["-o", "remount,bind,ro", folder])
    assert_goes_on(run, what)


@pytest.mark.tier("all")
@pytest.mark.parametrize("what", ["agent", "supervisor"])
def test_nothing_at_all_can_be_written(disk: Path, what: str) -> None:
    """Without the reserve the run ends, and says what could not be written; its checkpoint is whole."""
    run = started(disk)
    (run.directory / RESERVE).unlink()
    fill(disk)
    run.kill(pid_of(run, what))
    code, _, err = run.finish(seconds=100)
    assert code != 0
    assert f"lost {what}" in err
    assert "No space left on device" in err
    assert str(run.directory) in err
    assert "came within" not in err
    assert "Traceback" not in err
    assert (run.directory / "checkpoints/step-000000010/manifest.json").exists()


@pytest.mark.tier("all")
def test_full_disk_at_the_end(tmp_path: Path) -> None:
    """The log of written paths cannot be written; the script's own file, elsewhere, is."""
    (tmp_path / "train.py").write_text(TRAINS + 'torch.save(model.state_dict(), "final.pt")\nprint("saved 0")\n')
    run = Run(tmp_path, "-n", "2", "--checkpoint-every", "1000steps", "--max-restarts", "0", "train.py")
    run.until(lambda: bool(run.events("agent")), "the run directory is there")
    (run.directory / "checkpoints").mkdir(exist_ok=True)
    (run.directory / "checkpoints/written.jsonl").symlink_to("/dev/full")
    code, out, err = run.finish(seconds=200)
    assert code == 0, err
    assert out.splitlines()[-1] == "saved 0"
    assert (tmp_path / "final.pt").stat().st_size > 0
    assert err.count("the disk is full") == 1
    assert "written.jsonl: the disk is full; " in err


def test_reserve_of_a_run_directory(tmp_path: Path) -> None:
    """It is given up once, for what the run cannot go on without."""
    tries: list[bool] = []

    def write() -> None:
        tries.append((tmp_path / RESERVE).exists())
        if tries[-1]:
            raise OSError(errno.ENOSPC, "No space left on device")

    with (tmp_path / "events.jsonl").open("wb", buffering=0) as events:
        directory = RunDirectory(str(tmp_path), events)
        (tmp_path / RESERVE).write_bytes(b"reserved")
        directory.insist(write)
        assert tries == [True, False]
        with pytest.raises(PermissionError):
            directory.insist(denied)


def denied() -> None:
    """Fail as a folder of another user does."""
    raise PermissionError(errno.EACCES, "Permission denied")
