"""The examples run under echelon and under torchrun alike."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
ECHELON = (sys.executable, "-m", "echelon", "run", "-n", "2")
SMALL = ("--steps", "20", "--layers", "2", "--width", "64", "--every", "5")

TORCH_BUG = "terminate called without an active exception"  # torch 2.13 at the end of a gloo run, under torchrun


def losses(folder: Path, launcher: tuple[str, ...]) -> list[str]:
    folder.mkdir()
    command = [*launcher, str(EXAMPLES / "gpt.py"), *SMALL, "--out", str(folder)]
    for _ in range(3 if launcher is TORCHRUN else 1):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
        if TORCH_BUG not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    assert (folder / "loss.png").stat().st_size > 10_000
    return re.findall(r"step +\d+ +loss +[\d.]+", done.stdout)


def test_gpt_has_the_same_losses_under_torchrun(tmp_path: Path) -> None:
    """Two ranks of the demo's script print the same loss lines, whoever starts them, and draw the curve."""
    ours = losses(tmp_path / "ours", ECHELON)
    assert len(ours) >= 4
    assert ours == losses(tmp_path / "theirs", TORCHRUN)


def test_one_device_on_four_ranks(tmp_path: Path) -> None:
    """The README's script prints on four ranks what it prints on one device, and saves a model as one does."""
    script = str(EXAMPLES / "one_device.py")
    said = []
    for command in ([sys.executable, script], [*ECHELON[:-1], "4", script]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=True)
        said.append(done.stdout)
        (tmp_path / "spirals.pt").unlink()
    assert "accuracy 0.9" in said[0]
    assert said[0] == said[1]


def test_allreduce(tmp_path: Path) -> None:
    """The all-reduce example sums over all ranks."""
    command = [*ECHELON, str(EXAMPLES / "allreduce.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True)
    assert "2" in done.stdout


def test_hello_on_every_rank(tmp_path: Path) -> None:
    """The greeting comes from each rank, with its number before it when all are shown."""
    command = [*ECHELON[:-1], "3", "--show", "all", str(EXAMPLES / "hello.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True)
    assert sorted(line[:3] for line in done.stdout.splitlines()) == ["[0]", "[1]", "[2]"]
