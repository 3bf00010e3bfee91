"""A run that reads many small files from a shared disk, or imports from there, is told what would read them once."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from echelon.cli import shared_disk
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
