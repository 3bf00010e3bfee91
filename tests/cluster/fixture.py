"""Offer the private cluster to pytest: `from tests.cluster.fixture import slurm` in a conftest.py."""

import os
from collections.abc import Iterator

import pytest

from .errors import ClusterError
from .private import Cluster, missing_tools


def require_tools() -> None:
    """Skip the test where Slurm is not installed; fail it where it must be, under CI=true."""
    reason = missing_tools()
    if reason and os.environ.get("CI") == "true":
        raise ClusterError(reason)
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="session")
def slurm() -> Iterator[Cluster]:
    """Offer one cluster of four nodes to all tests of the session."""
    require_tools()
    with Cluster() as cluster:
        yield cluster
