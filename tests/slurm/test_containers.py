"""Ranks in containers that have never heard of Slurm or of echelon."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.container.fixture import Singularity, singularity
from tests.container.image import Image
from tests.runs import ECHELON

from .test_run import reports

__all__ = ["singularity"]

REPORT = """
import json, os, sys
from pathlib import Path
import shutil
try:
    import echelon
except ImportError:
    echelon = None
fields = {"environ": dict(os.environ), "argv": sys.argv[1:], "executable": sys.executable, "srun": shutil.which("srun"),
          "has_echelon": echelon is not None}
path = Path(sys.argv[1]) / f"{os.environ['RANK']}.json"
path.write_text(json.dumps(fields))
"""


def echelon(
    folder: Path, *arguments: str, before: tuple[str, ...] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, *ECHELON, *arguments], cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "report.py").write_text(REPORT)
    return tmp_path


@pytest.mark.parametrize("launch", ["warm", "exec"])
def test_ranks_here_run_inside(singularity: Singularity, folder: Path, launch: str) -> None:
    """Agents and ranks run with the image's Python, without echelon."""
    singularity.image(folder / "image.sif")
    done = echelon(
        folder, "run", "-n", "2", "--launch", launch, "--container", "image.sif", "report.py", str(folder), "a b"
    )
    assert done.returncode == 0, done.stderr
    found = reports(folder)
    assert sorted(found) == [0, 1]
    for report in found.values():
        assert not report["has_echelon"]
        assert report["argv"][1] == "a b"
        assert not report["executable"].startswith(sys.prefix + os.sep)
        assert report["environ"]["WORLD_SIZE"] == "2"


def test_image_and_data_from_the_own_disk(singularity: Singularity, folder: Path) -> None:
    """The ranks run in the copy of the image, and see the copy of the data."""
    singularity.image(folder / "image.sif")
    (folder / "data").mkdir()
    (folder / "data" / "a.txt").write_text("alpha")
    (folder / "own").mkdir()
    words = ("--container", "image.sif", "--stage-env", "--stage-data", "data", "read.py", "./data")
    (folder / "read.py").write_text("import sys; print(sys.argv[1], open(sys.argv[1] + '/a.txt').read())")
    done = echelon(folder, "run", "-n", "1", *words, ECHELON_STAGE=str(folder / "own"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(folder / "own"))
    assert done.stdout.endswith("/files/data alpha\n")
    assert "image.sif staged on this machine" in done.stderr
    plan = next(folder.glob("echelon-runs/*/plan.json")).read_text()
    assert f"{folder / 'own'}/echelon-stage-" in plan.partition('"prefix"')[2].partition("]")[0]
    assert not any((folder / "own").iterdir())


@pytest.mark.slurm
def test_ranks_on_nodes_run_inside(slurm: Cluster, singularity: Singularity, folder: Path) -> None:
    """Over two nodes the one Slurm step starts one container a node, and no rank finds srun."""
    singularity.image(folder / "image.sif")
    environ = {**slurm.environ, "PATH": f"{singularity.folder}:{slurm.environ['PATH']}"}
    done = subprocess.run(
        ["salloc", "--quiet", "-N2", "--ntasks-per-node=1", *ECHELON, "run", "-n", "2", "--container", "image.sif",
         "report.py", str(folder)], cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = reports(folder)
    assert sorted(found) == [0, 1, 2, 3]
    assert {report["srun"] for report in found.values()} == {None}
    assert {report["environ"]["SLURM_PROCID"] for report in found.values()} == {"0", "1", "2", "3"}


def test_failure_inside_is_told_as_outside(singularity: Singularity, folder: Path) -> None:
    """A rank's traceback and exit code come out of the container."""
    singularity.image(folder / "image.sif")
    (folder / "train.py").write_text("raise ValueError('inside')\n")
    done = echelon(folder, "run", "-n", "2", "--container", "image.sif", "train.py")
    assert done.returncode == 1
    assert "ValueError: inside" in done.stderr


def test_missing_image(singularity: Singularity, folder: Path) -> None:
    """An image that is not there is refused before anything starts, with the nearest name."""
    singularity.image(folder / "image.sif")
    done = echelon(folder, "run", "--container", "imag.sif", "report.py")
    assert done.returncode == 2
    assert "--container imag.sif: this image does not exist" in done.stderr
    assert "hint: --container image.sif" in done.stderr


def test_image_that_is_none(singularity: Singularity, folder: Path) -> None:
    """A file that is no image ends in the runtime's own words."""
    (folder / "image.sif").write_text("no image")
    done = echelon(folder, "run", "--container", "image.sif", "report.py")
    assert done.returncode in (1, 2)
    assert "image format not recognized" in done.stderr
    assert "Traceback" not in done.stderr


def test_start_line_and_binds_of_the_machine(singularity: Singularity, folder: Path) -> None:
    """The machine's convention for an image decides its binds, its command and its start-up line."""
    data = folder / "data"
    data.mkdir()
    (data / "text").write_text("bound")
    singularity.image(
        folder / "image.sif", Image(environ={"START": "export STARTED=yes"}, runscript="/usr/bin/env RAN=yes")
    )
    facts = f'''
name = "site"
title = "A site"
source = "a page"
date = 2026-11-21
clusters = ["site"]

[[container]]
name = "its own"
images = "*/image.sif"
command = "run"
binds = ["{data}:/opt/data"]
start_line = "eval $START"
source = "a page"
date = 2026-11-21
'''
    (folder / "site.toml").write_text(facts)
    (folder / "train.py").write_text(
        "import os\nprint(open('/opt/data/text').read(), os.environ['STARTED'], os.environ['RAN'])\n"
    )
    known = {"ECHELON_MACHINES": str(folder / "site.toml"), "ECHELON_MACHINE": "site"}
    done = echelon(folder, "run", "--container", "image.sif", "train.py", **known)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "bound yes yes\n"
