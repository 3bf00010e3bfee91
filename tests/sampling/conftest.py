"""The trees of this folder's tests, each built once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.sampling.nodes import Files
from tests.topology import trees


@pytest.fixture(scope="session")
def lumi_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.lumi_g(tmp_path_factory.mktemp("lumi"))


@pytest.fixture(scope="session")
def dgx_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.dgx_a100(tmp_path_factory.mktemp("dgx"))


@pytest.fixture
def lumi(lumi_tree: Path) -> Iterator[Files]:
    """A node of LUMI-G: four packages of two dies."""
    files = Files(lumi_tree)
    yield files
    files.restore()


@pytest.fixture
def dgx(dgx_tree: Path) -> Iterator[Files]:
    """A DGX A100: eight cards, InfiniBand and Ethernet."""
    files = Files(dgx_tree)
    yield files
    files.restore()
