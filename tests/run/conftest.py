"""Give each test of this folder a shell of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .shell import Shell, opened_in


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Give a test its shell."""
    with opened_in(tmp_path) as shell:
        yield shell
