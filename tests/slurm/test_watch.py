"""`echelon watch` from outside of a job: through the run directory, and through a step in the job."""

import subprocess
import time
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.runs import ECHELON

pytestmark = pytest.mark.slurm


def test_run_of_a_job(slurm: Cluster, tmp_path: Path) -> None:
    line = ["salloc", "--quiet", "--nodes=2", "--partition=dev-g", *ECHELON, "run", "--run-dir", "run", "-n", "1"]
    with subprocess.Popen([*line, "--", "sleep", "60"], cwd=tmp_path, env=slurm.environ) as run:
        try:
            while (told := watch(slurm, tmp_path)).count("nid") < 2:
                assert run.poll() is None, told
                time.sleep(0.2)
            assert "running" in told
            assert "2 ranks on 2 nodes" in watch(slurm, tmp_path, "--in-job")
        finally:
            run.terminate()


def watch(slurm: Cluster, folder: Path, *options: str) -> str:
    line = [*ECHELON, "watch", "--once", *options, "run"]
    done = subprocess.run(line, cwd=folder, env=slurm.environ, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
