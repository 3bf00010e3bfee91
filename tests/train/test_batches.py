"""Batches are shared in order, and nothing is lost."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from echelon.train import batches
from echelon.train.wire.world import World

pytestmark = pytest.mark.usefixtures("with_rules")


@given(size=st.integers(1, 500), num_ranks=st.integers(1, 64))
def test_rows_are_the_batch(size: int, num_ranks: int) -> None:
    """The parts of all ranks together are the batch in its order, and differ by one at most."""
    rows = batches.rows_of(size, num_ranks)
    indices = list(range(size))
    parts = [batches.of_indices(indices, rank, rows) for rank in range(num_ranks)]
    assert [index for part, count in zip(parts, rows, strict=True) for index in part[:count]] == indices
    assert max(rows) - min(rows) <= 1


def test_rank_without_a_sample_gets_one_all_the_same() -> None:
    """Where a last batch is smaller than the ranks are many, some compute with a sample that does not count."""
    assert batches.of_indices([7, 8], 3, batches.rows_of(2, 4)) == [7]


def test_whole_batch_is_viewed() -> None:
    """Tensors, also in dicts and tuples, become views; what holds no samples stays."""
    rows = batches.rows_of(6, 3)
    batch = {"x": torch.arange(6), "y": (torch.arange(6) * 2, ["a", "b"]), "name": "all", "scale": torch.tensor(2.0)}
    view = batches.of_whole(batch, World(1, 3, torch.device("cpu")), rows)
    assert view["x"].local.tolist() == [2, 3]
    assert view["y"][0].local.tolist() == [4, 6]
    assert len(view["x"]) == 6
    assert (view["y"][1], view["name"], view["scale"].item()) == (["a", "b"], "all", 2.0)


def test_batch_without_rows_for_samples() -> None:
    """Tensors of different first dims have no common number of samples."""
    assert batches.length_of([torch.zeros(3), torch.zeros(4)]) == 0
    assert batches.length_of({"x": torch.zeros(3, 2), "y": torch.zeros(3)}) == 3
