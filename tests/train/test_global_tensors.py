"""What is computed from views of a batch is what one device computes, gradients included, however the rows fall."""

import pytest
from tests.tiers import some
from tests.train import view_cases
from tests.train.strategies import ranks


@pytest.mark.parametrize(("num_ranks", "num_samples"), some([(3, 7), (2, 8), (3, 4), (4, 3)], 4))
def test_every_case(num_ranks: int, num_samples: int) -> None:
    """Evenly, unevenly, with one row on a rank, and with none."""
    assert ranks.run(num_ranks, view_cases.differences, num_samples) == [[]] * num_ranks
