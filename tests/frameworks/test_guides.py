"""The examples beside the frameworks: CSC's benchmark, digits, and the seven steps of HiPerGator's tutorial."""

import os
import re
from pathlib import Path

import pytest

from .lines import EXAMPLES, Line, lines_of, run

pytestmark = [pytest.mark.framework("torch"), pytest.mark.tier("all")]
SMALL = {
    "resnet": "--depth 18 --width 8 --image-size 32 --batch-size 8 --warm-up 1 --steps 3",
    "digits": "--epochs 4 --pictures 1024",
    "hipergator": "--rows 256 --epochs 2",
}


def all_lines(name: str) -> list[object]:
    """Return the lines of an example as parameters."""
    return [
        pytest.param(line, id=line.id, marks=[pytest.mark.slurm] if line.is_for_nodes else [])
        for line in lines_of(EXAMPLES / f"{name}.py")
    ]


def shown(line: Line, folder: Path, request: pytest.FixtureRequest, *more: str) -> str:
    """Return what a line prints with small sizes, having ended well."""
    environ = request.getfixturevalue("slurm").environ if line.is_for_nodes else os.environ
    done = run(line, folder, environ, *SMALL[line.example.stem].split(), *more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def num_ranks(line: Line) -> int:
    return int(re.search(r"-n (\d)", line.command)[1]) * (2 if line.is_for_nodes else 1)


@pytest.mark.parametrize("line", all_lines("resnet"))
def test_resnet_counts_the_images_of_all_ranks(line: Line, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Rank 0 says once how many images a second a rank trains on, and that all together are as many times faster."""
    out = shown(line, tmp_path, request)
    assert out.startswith(f"ResNet-18, 32 x 32, 8 a rank, ranks: {num_ranks(line)}\n")
    of_a_rank, in_all = (float(number) for number in re.findall(r"images/s .*?: ([\d.]+)", out))
    assert of_a_rank > 0
    assert in_all == pytest.approx(of_a_rank * num_ranks(line), rel=0.01)


@pytest.fixture(scope="module")
def digits_alone(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> str:
    return shown(lines_of(EXAMPLES / "digits.py")[0], tmp_path_factory.mktemp("digits"), request)


@pytest.mark.parametrize("line", all_lines("digits")[1:])
def test_digits_are_read_as_by_one_process(
    line: Line, digits_alone: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Losses are those of one process, each picture is tested once, most are read, and the model alone is saved."""
    import torch

    def numbers(out: str) -> tuple[list[float], list[float]]:
        found = re.findall(r"epoch \d loss ([\d.]+) read (\d+) of 257\n", out)
        return [float(loss) for loss, _ in found], [float(right) for _, right in found]

    losses, right = numbers(shown(line, tmp_path, request))
    losses_alone, right_alone = numbers(digits_alone)
    assert losses == pytest.approx(losses_alone, rel=0.01)
    assert right == pytest.approx(right_alone, abs=5)  # rounding decides about a few
    assert right[-1] > 128
    assert not [name for name in torch.load(next(tmp_path.rglob("digits.pt"))) if name.startswith("module.")]


# two processes share one pipe: what they print may share a line
STEP = re.compile(r"\[(\d)\] epoch (\d): (\d+) steps, rows \[(.*?)\]")


@pytest.mark.parametrize("step", [3, 4, 5, 6])
def test_steps_of_hipergator_that_the_script_starts_itself(
    step: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Until step 3 two processes do the same; with 4 each has half, with 5 in another order, with 6 one saves."""
    line = lines_of(EXAMPLES / "hipergator.py")[1]
    out = shown(line, tmp_path, request, "--step", str(step))
    found = {(int(rank), int(epoch)): (int(steps), rows) for rank, epoch, steps, rows in STEP.findall(out)}
    assert sorted(found) == [(0, 0), (0, 1), (1, 0), (1, 1)], out
    assert {steps for steps, _ in found.values()} == {8 if step < 4 else 4}
    assert (found[0, 0] == found[1, 0]) == (step < 4)
    if step >= 4:
        assert (found[0, 0] == found[0, 1]) == (step < 5)
    assert ("[1] saved" in out) == (step < 6)
    assert (tmp_path / "hipergator.pt").exists()


@pytest.mark.parametrize(
    "line", [param for param in all_lines("hipergator") if "--step 6" not in param.values[0].command]
)
def test_first_and_last_step_of_hipergator(line: Line, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One device sees all rows; under echelon each rank has its share, and rank 0 alone saves."""
    out = shown(line, tmp_path, request)
    ranks = 1 if "--step 1" in line.command else num_ranks(line)
    assert [(rank, int(steps)) for rank, _, steps, _ in STEP.findall(out)] == [("0", 8 // ranks)] * 2
    assert out.count("saved") == 2
