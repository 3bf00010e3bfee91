"""What tests of trainings in this process need."""

import pytest


@pytest.fixture
def with_rules() -> None:
    """Install the rules of global tensors, which another test of this process may have undone."""
    from echelon.train.global_tensors import rules
    from echelon.train.global_tensors.tensors import GlobalTensor

    if not hasattr(GlobalTensor, "rule"):
        rules.install()
