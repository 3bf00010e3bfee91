"""The runs that the tests of this folder look at."""

import pytest

from .runs import Runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("scripts"))
