"""The examples run under echelon and under torchrun alike."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests import warm

EXAMPLES = Path(__file__).parent.parent / "examples"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
ECHELON = (sys.executable, "-m", "echelon", "run", "-n", "2")
SMALL = ("--steps", "20", "--layers", "2", "--width", "64", "--every", "5")

TORCH_BUG = "terminate called without an active exception"  # torch 2.13 at the end of a gloo run, under torchrun


def losses(folder: Path, *launcher: str, script: str) -> list[float]:
    folder.mkdir()
    command = [*launcher, str(EXAMPLES / script), *SMALL, "--out", str(folder)]
    for _ in range(3 if launcher == TORCHRUN else 1):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
        if TORCH_BUG not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    assert (folder / "loss.csv").read_text().count("\n") == 21
    return [float(loss) for loss in re.findall(r"step \d+ loss ([\d.]+)", done.stdout)]


@pytest.mark.tier("all")
def test_gpt_has_the_same_losses_whoever_starts_it(tmp_path: Path) -> None:
    """The script for one device, scaled by echelon, and its form for DDP, under torchrun and echelon, lose the same."""
    alone = losses(tmp_path / "alone", sys.executable, script="gpt.py")
    assert len(alone) >= 4
    assert losses(tmp_path / "scaled", *ECHELON, script="gpt.py") == pytest.approx(alone, rel=1e-3)
    ours = losses(tmp_path / "ours", *ECHELON, script="ddp_gpt.py")
    assert ours == pytest.approx(alone, rel=1e-3)
    assert ours == losses(tmp_path / "theirs", *TORCHRUN, script="ddp_gpt.py")


def test_curves_of_two_trainings(tmp_path: Path) -> None:
    """The picture has both curves, and the line below it says how far they are apart."""
    for name, last in (("one_rank", 2.0), ("two_ranks", 2.25)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "loss.csv").write_text(f"step,loss_nats_per_byte\n1,5.5\n2,3.0\n3,{last}\n")
    command = [sys.executable, str(EXAMPLES / "curve.py"), "one_rank/loss.csv", "two_ranks/loss.csv", "loss.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "The losses of one rank and two ranks differ by at most 0.2500 in 3 steps: loss.png\n"
    assert (tmp_path / "loss.png").stat().st_size > 10_000


@pytest.mark.tier("all")
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
    done = warm.run([*ECHELON[1:], str(EXAMPLES / "allreduce.py")], cwd=tmp_path)
    assert "2" in done.stdout


def test_hello_on_every_rank(tmp_path: Path) -> None:
    """The greeting comes from each rank, with its number before it when all are shown."""
    done = warm.run([*ECHELON[1:-1], "3", "--show", "all", str(EXAMPLES / "hello.py")], cwd=tmp_path)
    assert sorted(line[:3] for line in done.stdout.splitlines()) == ["[0]", "[1]", "[2]"]
