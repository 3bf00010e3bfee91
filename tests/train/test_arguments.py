"""A tensor beside the batch is cut where it has a row for each sample, and only there."""

import pytest
import torch
from torch import nn

from echelon.train.batches import rows_of
from echelon.train.global_tensors.arguments import Entries
from echelon.train.global_tensors.tensors import Sharded
from echelon.train.scaling_error import ScalingError
from echelon.train.wire.world import World

pytestmark = pytest.mark.usefixtures("with_rules")
WORLD = World(0, 2, torch.device("cpu"))


def entered(module: nn.Module, num_samples: int, beside: torch.Tensor) -> tuple[int, ...]:
    """Return the shape that the first of two ranks gets of a tensor beside a batch."""
    rows = rows_of(num_samples, 2)
    lead = Sharded(torch.zeros(rows[0], 3), WORLD, rows)
    (_, own), _ = Entries(module, lead).enter((lead, beside), {})
    return tuple(own.shape)


def test_rows_are_cut() -> None:
    """Of what is as long as the batch a rank gets its rows, also in the second dim, as an RNN's state has it."""
    assert entered(nn.Linear(3, 3), 10, torch.zeros(10, 5)) == (5, 5)
    assert entered(nn.Linear(3, 3), 10, torch.zeros(2, 10, 5)) == (2, 5, 5)


def test_centres_as_many_as_the_last_batch_stay_whole() -> None:
    """A tensor that was whole in an earlier call stays whole when its length equals the batch's by chance."""
    module = nn.Linear(3, 3)
    assert entered(module, 12, torch.zeros(10, 3)) == (10, 3)
    assert entered(module, 10, torch.zeros(10, 3)) == (10, 3)


def test_centres_that_were_cut_are_refused() -> None:
    """A tensor that was as long as the batch by chance is found out by the first batch of another size."""
    module = nn.Linear(3, 3)
    entered(module, 10, torch.zeros(10, 3))
    with pytest.raises(ScalingError, match="echelon took its rows for samples"):
        entered(module, 12, torch.zeros(10, 3))


def test_state_of_as_many_layers_as_samples_is_cut_as_before() -> None:
    """The dim of the rows is that of earlier calls."""
    module = nn.Linear(3, 3)
    assert entered(module, 10, torch.zeros(2, 10, 5)) == (2, 5, 5)
    assert entered(module, 2, torch.zeros(2, 2, 5)) == (2, 1, 5)


def test_squares() -> None:
    """Masks over positions stay whole; what has the shape of the batch is samples; what may be either is refused."""
    assert entered(nn.Linear(3, 3), 4, torch.full((4, 4), float("-inf")).triu(1)) == (4, 4)
    assert entered(nn.Linear(3, 3), 4, torch.ones(4, 4, dtype=torch.bool)) == (4, 4)
    assert entered(nn.Linear(3, 3), 3, torch.rand(3, 3)) == (2, 3)
    with pytest.raises(ScalingError, match="square"):
        entered(nn.Linear(3, 3), 4, torch.rand(4, 4))
