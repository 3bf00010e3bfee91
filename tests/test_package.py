"""The zip for compute nodes is packed once and kept."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from echelon.launch import package

WRITE = "import sys; from echelon.launch import package; package.write(sys.argv[1]); print('zipfile' in sys.modules)"


def packs(archive: Path, cache: Path) -> bool:
    """Write a zip in a process of its own and say whether it had to be packed."""
    environ = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-c", WRITE, str(archive)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert zipfile.ZipFile(archive).testzip() is None
    return done.stdout == "True\n"


def test_second_run_takes_the_kept_one(tmp_path: Path) -> None:
    """Only the first run packs, and both write the same bytes."""
    assert packs(tmp_path / "1.pyz", tmp_path / "cache")
    assert not packs(tmp_path / "2.pyz", tmp_path / "cache")
    assert (tmp_path / "1.pyz").read_bytes() == (tmp_path / "2.pyz").read_bytes()


def test_home_that_takes_no_files(tmp_path: Path) -> None:
    """Where nothing can be kept, each run packs for itself."""
    (tmp_path / "cache").write_text("a file where a folder should be")
    assert packs(tmp_path / "1.pyz", tmp_path / "cache")
    assert packs(tmp_path / "2.pyz", tmp_path / "cache")


def test_changed_source_is_packed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's edit, or an upgrade, is in the next run's zip."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    room = tmp_path / "node"
    room.mkdir()
    source = room / "told.py"
    source.write_text("WORD = 1\n")
    monkeypatch.setattr(package, "sources", lambda: {"node/told": str(source)})
    package.write(str(tmp_path / "1.pyz"))
    source.write_text("WORD = 22\n")
    package.write(str(tmp_path / "2.pyz"))
    with zipfile.ZipFile(tmp_path / "2.pyz") as archive:
        assert archive.read("_echelon/node/told.py") == b"WORD = 22\n"


def test_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache keeps a handful."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    source = tmp_path / "told.py"
    monkeypatch.setattr(package, "sources", lambda: {"node/told": str(source)})
    for number in range(12):
        source.write_text("#" * number)
        package.write(str(tmp_path / "out.pyz"))
    assert len(list((tmp_path / "echelon").iterdir())) == 8
