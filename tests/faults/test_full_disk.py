"""A disk that is full is named as such, with the rank that wrote, in whatever words a library says it."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import warm
from tests.tiers import some

from echelon.launch import failure

SCALED = str(Path(__file__).parent / "full_disk.py")
DISTRIBUTED = str(Path(__file__).parent / "full_disk_of_rank_1.py")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of one megabyte, which only root can do."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False)
    if mounting.returncode != 0:
        pytest.skip("nothing can be mounted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.usefixtures("small_disk")
@pytest.mark.parametrize("how", some(["torch", "numpy", "file", "own error"], 4))
def test_full_disk_of_a_scaled_script(tmp_path: Path, how: str) -> None:
    """Rank 0 wrote, so it is named, and not a rank that heard of it."""
    done = warm.run(["-m", "echelon", "run", "-n", "2", SCALED, how], cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "echelon: scaled over 2 ranks" in done.stderr
    assert "echelon: rank 0 on " in done.stderr
    assert "failed first: no space left on the disk" in done.stderr


@pytest.mark.usefixtures("small_disk")
def test_full_disk_of_a_distributed_script(tmp_path: Path) -> None:
    """Rank 1 wrote; rank 0 only lost its connection."""
    done = warm.run(["-m", "echelon", "run", "-n", "2", DISTRIBUTED], cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "echelon: rank 1 on " in done.stderr
    assert "failed first: no space left on the disk" in done.stderr


@pytest.mark.parametrize(
    ("tail", "cause"),
    [
        ("Traceback (most recent call last):\nOSError: [Errno 122] Disk quota exceeded: 'a'", failure.FULL_DISK),
        ("Traceback (most recent call last):\nOSError: 160000 requested and 101344 written", failure.FULL_DISK),
        ("Traceback (most recent call last):\nRuntimeError: [enforce fail at inline_container.cc:858] . "
         "PytorchStreamWriter failed writing file data/0: file write failed", failure.FULL_DISK),
        ("OSError: [Errno 28] No space left on device\n\nTraceback (most recent call last):\nKeyError: 'a'",
         failure.USER_ERROR),
        ("Traceback (most recent call last):\nOSError: 5 requests and 4 written", failure.USER_ERROR),
    ],
)  # fmt: skip
def test_words_of_libraries(tail: str, cause: str) -> None:
    """An error that the script has overcome before is not the cause of a later one."""
    message = {"rank": 0, "status": 1, "error_time": 1.0, "time": 2.0, "tail": tail, "why": ""}
    found = failure.of_rank(message, node="n", local_rank=0, clock_offset=0.0, log="", stopped_at=failure.NEVER)
    assert found.cause == cause
