"""A run that reads many small files from a shared disk, or imports from there, is told what would read them once."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from echelon.cli import main, shared_disk
from echelon.host import Host
from echelon.launch.prepare import prepare
from echelon.spec import Command, Job, Staged


@pytest.fixture
def lustre(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Take the folder of the test, and Python's, for one on a shared disk."""
    monkeypatch.setattr(shared_disk, "filesystem", lambda path: "lustre" if path.startswith(("/", sys.prefix)) else "")
    monkeypatch.setattr(shared_disk, "MANY_FILES", 20)
    return tmp_path


@pytest.mark.parametrize(
    ("num_files", "num_bytes", "is_told"), [(20, 100, True), (19, 100, False), (20, 2 << 20, False)]
)
def test_many_small_files(lustre: Path, num_files: int, num_bytes: int, *, is_told: bool) -> None:
    """They are told with their size; few files, or large ones, are not; nor is a folder that is staged."""
    for number in range(num_files):
        path = lustre / "data" / str(number % 3) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(num_bytes)
    command = Command(
        kind="program", target=sys.executable, arguments=(f"--data={lustre}/data", "data", str(lustre / "x"))
    )
    plan = prepare(Job(command=command), Host())
    (told,) = list(shared_disk.of_arguments(plan)) or [""]
    assert bool(told) is is_told
    if told:
        assert f"{lustre}/data holds more than 20 files of about 100 B on lustre" in told
        item = Staged(source=f"{lustre}/data", folder="/x", target="/x/data")
        assert not list(shared_disk.of_arguments(replace(plan, staged=(item,))))


@pytest.mark.usefixtures("lustre")
def test_imports_are_counted() -> None:
    """`echelon check` names the files and bytes of an import."""
    (finding,) = shared_disk.of_imports(Host())
    match = re.search(r"import torch reads ([\d,]+) files, \S+ MiB, from lustre", finding.message)
    assert match, finding.message
    assert int(match.group(1).replace(",", "")) > 500


def test_job_that_names_such_a_folder(lustre: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """`echelon lint` finds it in a job, behind a variable too; a folder that is staged or packed is not named."""
    monkeypatch.chdir(lustre)
    for number in range(20):
        (lustre / "data").mkdir(exist_ok=True)
        (lustre / "data" / f"{number}.png").write_bytes(b"1" * 100)
    head = f"#!/bin/bash\n#SBATCH --time=1:00:00\n#SBATCH --gpus-per-node=4\nDATA={lustre}/data\n"
    Path("job.sh").write_text(f"{head}srun python train.py --data $DATA\n")
    Path("staged.sh").write_text(f"{head}echelon run --stage-data $DATA train.py --data $DATA\n")
    Path("packed.sh").write_text(f"{head}echelon pack $DATA\nls $DATA\n")
    assert main(["lint", "--json", "job.sh", "staged.sh", "packed.sh"]) in (0, 1)
    told = [each for each in json.loads(capsys.readouterr().out)["findings"] if each["code"] == "ECH318"]
    assert [(each["path"], each["line"]) for each in told] == [("job.sh", 4)]
    assert "holds more than 20 files of about 100 B on lustre" in told[0]["message"]
    assert f"echelon pack {lustre}/data; echelon run --stage-data data.squashfs" in told[0]["repair"]
