"""Hidden folders that nodes share: the next process removes what a killed one has left."""

import os
import signal
from pathlib import Path

import pytest

from echelon.launch.run_directory import shared_folder


def test_folder_of_a_killed_process_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a living process and that of another node stay."""
    monkeypatch.chdir(tmp_path)
    child = os.fork()
    if not child:
        with shared_folder("try", ""):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    [left] = tmp_path.iterdir()
    elsewhere = tmp_path / ".echelon-try-another-node-x"
    elsewhere.mkdir()
    (elsewhere / ".owner").touch()
    with shared_folder("try", "") as first, shared_folder("try", "") as second:
        assert sorted(tmp_path.iterdir()) == sorted([elsewhere, Path(first), Path(second)])
        assert not left.exists()
    assert list(tmp_path.iterdir()) == [elsewhere]
