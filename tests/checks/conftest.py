"""The nodes of this folder's tests."""

import pytest
from tests.checks.nodes import Forest


@pytest.fixture(scope="session")
def forest(tmp_path_factory: pytest.TempPathFactory) -> Forest:
    """Offer the trees of all documented nodes."""
    return Forest(tmp_path_factory.mktemp("forest"))
