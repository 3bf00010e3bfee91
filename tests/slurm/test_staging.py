"""`--stage-data` in an allocation: a stager on each node beside the step of the run; both nodes are one machine."""

import sys
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.runs import ECHELON

pytestmark = pytest.mark.slurm


@pytest.mark.parametrize("with_pool", [False, True])
def test_nodes_of_an_allocation(slurm: Cluster, tmp_path: Path, *, with_pool: bool) -> None:
    """Two runs on two nodes read the copy; with a pool the second finds it there; the end of the job leaves nothing."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("alpha")
    (tmp_path / "own").mkdir()
    (tmp_path / "train.py").write_text(
        "import os, sys; print(os.environ['RANK'], open(sys.argv[1] + '/a.txt').read(), sys.argv[1] != './data')\n"
    )
    run = f"{' '.join(ECHELON)} run -n 1 --show all --stage-data data train.py ./data"
    lines = [f"{' '.join(ECHELON)} pool start", run, run] if with_pool else [run, run]
    words = ("--quiet", "-N2", "--ntasks-per-node=1", "env", f"ECHELON_STAGE={tmp_path / 'own'}", "bash", "-c")
    done = slurm.run("salloc", *words, "; ".join(lines), check=False, cwd=tmp_path, timeout=120)
    assert sorted(line.split("] ")[-1] for line in done.stdout.splitlines()) == sorted(
        ["0 alpha True", "1 alpha True"] * 2
    ), done.stdout + done.stderr
    first, second = [line for line in done.stderr.splitlines() if "staged" in line]
    assert "data staged on 2 nodes: 1 file, " in first
    assert ("data is staged already" in second) is with_pool
    deadline = 50
    while any((tmp_path / "own").iterdir()) and deadline:
        slurm.run(sys.executable, "-c", "import time; time.sleep(0.2)", check=True)
        deadline -= 1
    assert not any((tmp_path / "own").iterdir())
