"""What is computed from views of a batch is what one device computes, gradients included, however the rows fall."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 200


@pytest.mark.parametrize(("num_ranks", "num_samples"), [(2, 8), (3, 7), (3, 4), (4, 3)])
def test_every_case(tmp_path: Path, num_ranks: int, num_samples: int) -> None:
    """Evenly, unevenly, with one row on a rank, and with none."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train.view_cases", str(rank), str(num_ranks), str(tmp_path / "store"),
             str(num_samples)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(num_ranks)
    ]  # fmt: skip
    try:
        ended = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [out for out, _ in ended] == [""] * num_ranks
    assert [process.returncode for process in processes] == [0] * num_ranks, ended
