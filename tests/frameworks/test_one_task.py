"""One task in every framework: its losses are those of one process in numpy, on 1 rank, on 2, and on 2 nodes x 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .lines import FRAMEWORKS, STEPS, Line, lines_of, losses, run

NEEDS = {
    "with_ddp": ["torch"],
    "with_accelerate": ["torch", "accelerate"],
    "with_lightning": ["torch", "lightning"],
    "with_fabric": ["torch", "lightning"],
    "with_deepspeed": ["torch", "deepspeed"],
    "with_mpi": ["mpi4py"],
    "with_jax": ["jax"],
    "with_tensorflow": ["tensorflow"],
}
TURNS = Path(__file__).parent / "deepspeed_stages.py"
STAGES = range(4)
ROUNDING = 2e-5  # of sums in another order, over the few steps; a wrong factor at a gradient is a thousand times that


def cases() -> list[object]:
    """Return every line of every example; DeepSpeed's stages of ZeRO take turns in one process.

    CI has two ranks of each that lives beside PyTorch.
    """
    found = []
    for name, packages in NEEDS.items():
        for line in lines_of(FRAMEWORKS / f"{name}.py"):
            marks = [pytest.mark.framework(*packages), *([pytest.mark.slurm] if line.is_for_nodes else [])]
            if packages[0] != "torch" or not line.command.startswith("echelon run -n 2"):
                marks.append(pytest.mark.tier("all"))
            found.append(pytest.param(line, id=line.id, marks=marks))
    return found


@pytest.fixture(scope="session")
def expected() -> list[float]:
    """Return the losses of one process without any framework."""
    command = [sys.executable, str(FRAMEWORKS / "task.py"), "--steps", str(STEPS)]
    return losses(subprocess.run(command, capture_output=True, text=True, check=False))


@pytest.mark.parametrize("line", cases())
def test_losses_are_those_of_one_process(
    line: Line, expected: list[float], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Whatever starts the ranks and however many there are, each step's loss is that of numpy alone, said once."""
    environ = request.getfixturevalue("slurm").environ if line.is_for_nodes else os.environ
    stages = 1
    if line.example.stem == "with_deepspeed":
        stages = len(STAGES)
        line = Line(TURNS, line.command.replace(f"{line.example.name} --stage 3", TURNS.name))
    done = run(line, tmp_path, environ, "--steps", str(STEPS))
    assert losses(done, times=stages) == pytest.approx(expected * stages, abs=ROUNDING)
    assert expected[-1] < expected[0] / 2  # something is learned


@pytest.mark.framework("mpi4py")
@pytest.mark.tier("all")
@pytest.mark.parametrize(
    ("command", "more", "said"),
    [
        (
            "mpiexec -n 2 python with_mpi.py",
            ["--batch-size", "63"],
            "2 ranks cannot share 63 rows: try --batch-size 64",
        ),
        ("echelon run -n 2 with_mpi.py", [], "imports mpi4py: COMM_WORLD holds only ranks that MPI starts"),
        ("env WORLD_SIZE=2 python with_mpi.py", [], "WORLD_SIZE is 2, but MPI sees 1: start the ranks by mpiexec"),
    ],
)
def test_what_cannot_be_is_said_and_ends_with_2(command: str, more: list[str], said: str, tmp_path: Path) -> None:
    """Shares that are not equal, and ranks that MPI knows nothing of, end the run before it trains something else."""
    done = run(Line(FRAMEWORKS / "with_mpi.py", command), tmp_path, os.environ, *more)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert "step" not in done.stdout
