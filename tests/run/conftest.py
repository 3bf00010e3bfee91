"""Give each test of this folder a shell of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .shell import Shell, wait_until


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Give a test its shell; whatever still runs 5 s after it fails it."""
    folder = tmp_path / "work"
    folder.mkdir()
    opened = Shell(folder, mark=str(tmp_path))
    yield opened
    try:
        wait_until(lambda: not opened.processes(), seconds=5.0)
    except AssertionError:
        left = opened.processes()
        opened.kill_all()
        pytest.fail(f"processes were left behind: {left}")
