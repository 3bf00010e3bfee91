"""Horovod, which must be built by hand beside a new torch: `make horovod` does, and runs this."""

import os
from pathlib import Path

import pytest

from .lines import FRAMEWORKS, STEPS, Line, lines_of, losses, run
from .test_one_task import ROUNDING, expected

__all__ = ["expected"]
pytestmark = [pytest.mark.framework("torch", "horovod"), pytest.mark.tier("all")]


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=line.id, marks=[pytest.mark.slurm] * line.is_for_nodes)
        for line in lines_of(FRAMEWORKS / "with_horovod.py")
    ],
)
def test_losses_are_those_of_one_process(
    line: Line, expected: list[float], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Alone, by mpirun under echelon here and on two nodes, and by srun, Horovod has the losses of numpy."""
    environ = request.getfixturevalue("slurm").environ if line.is_for_nodes else os.environ
    done = run(line, tmp_path, environ, "--steps", str(STEPS))
    assert losses(done) == pytest.approx(expected, abs=ROUNDING)
