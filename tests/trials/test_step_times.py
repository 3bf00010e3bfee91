"""The record of the steps of a rank that is measured."""

import os
import subprocess
import sys
import time
from pathlib import Path

from echelon.orders import bench
from echelon.orders.bench import BenchOrder
from echelon.train.step_times import StepTimes


def test_record_is_written_while_the_training_goes_on(tmp_path: Path) -> None:
    """A rank that is killed loses the steps of the last second; rank 1 writes nothing."""
    for rank in (0, 1):
        times = StepTimes(BenchOrder(str(tmp_path)), rank, 1)
        for seconds in (0.0, 0.05, 1.1, 0.05):
            time.sleep(seconds)
            times.stepped()
    lines = (tmp_path / bench.SECONDS_FILE).read_text().split("\n")
    assert [float(line) > 0.04 for line in lines[:-1]] == [True, True]
    assert float(lines[1]) >= 1.1


def test_rank_ends_after_its_last_step(tmp_path: Path) -> None:
    """The process ends with exit code 0 after step 3, its output is complete, and all steps are in the record."""
    code = (
        "import sys\nfrom echelon.orders.bench import BenchOrder\nfrom echelon.train.step_times import StepTimes\n"
        "times = StepTimes(BenchOrder(sys.argv[1], steps=3), 0, 1)\n"
        "for step in range(9):\n    print(step)\n    times.stepped()\nsys.exit(5)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n1\n2\n")
    assert (tmp_path / bench.SECONDS_FILE).read_text().count("\n") == 2
    assert os.path.exists(tmp_path / "ended-0")
