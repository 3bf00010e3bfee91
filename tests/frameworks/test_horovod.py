"""Horovod, which must be built by hand beside a new torch: `make horovod` does, and runs this."""

import os
from pathlib import Path

import pytest

from .lines import FRAMEWORKS, STEPS, Line, lines_of, losses, run
from .test_one_task import ROUNDING, expected

__all__ = ["expected"]
pytestmark = pytest.mark.framework("torch", "horovod")
ALONE, LOCAL, _BUILT_WITH_MPI = lines_of(FRAMEWORKS / "with_horovod.py")


@pytest.mark.parametrize("line", [ALONE, LOCAL], ids=lambda line: line.id)
def test_losses_are_those_of_one_process(line: Line, expected: list[float], tmp_path: Path) -> None:
    """By its own launcher, and alone, Horovod has the losses of numpy."""
    done = run(line, tmp_path, os.environ, "--steps", str(STEPS))
    done.stdout = done.stdout.replace("[0]<stdout>:", "")  # horovodrun's own mark of the rank
    assert losses(done) == pytest.approx(expected, abs=ROUNDING)
