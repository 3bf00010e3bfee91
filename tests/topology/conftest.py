"""A machine's tree, read as a node."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echelon.topology import discover
from echelon.topology.node import Node

Reader = Callable[..., Node]


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    """Return what builds a machine's tree and reads it."""

    def build_and_read(machine: Callable[..., Path], **options: Any) -> Node:
        return discover.read(str(machine(tmp_path / machine.__name__, **options)), {})

    return build_and_read
