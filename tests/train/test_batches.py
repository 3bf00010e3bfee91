"""Batches are cut into shares that are whole, in order, and rightly weighted."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from echelon.train import batches
from echelon.train.refusal import Refusal


@given(size=st.integers(1, 500), num_ranks=st.integers(1, 64))
def test_shares_are_the_batch(size: int, num_ranks: int) -> None:
    """All shares together are the batch in its order, sizes differ by one at most, and weights have the mean 1."""
    shares = [batches.share(size, rank, num_ranks) for rank in range(num_ranks)]
    samples = [sample for one in shares for sample in range(one.first, one.first + one.size)]
    assert samples == list(range(size))
    assert max(one.size for one in shares) - min(one.size for one in shares) <= 1
    assert sum(one.weight(num_ranks) for one in shares) / num_ranks == pytest.approx(1)


def test_rank_without_a_sample_steps_with_weight_0() -> None:
    """Where a last batch is smaller than the ranks are many, some train on a stand-in that does not count."""
    mine = batches.share(2, 3, 4)
    assert batches.of_indices([7, 8], mine) == [7]
    assert mine.weight(4) == 0


def test_nested_batches_are_cut() -> None:
    """Tensors, dictionaries, tuples and lists of texts are cut alike."""
    batch = {"x": torch.arange(6), "y": (torch.arange(6) * 2, ["a", "b", "c", "d", "e", "f"]), "name": "all"}
    mine = batches.share(batches.length_of(batch), 1, 3)
    part = batches.cut(batch, mine)
    assert part["x"].tolist() == [2, 3]
    assert part["y"][0].tolist() == [4, 6]
    assert part["y"][1] == ["c", "d"]
    assert part["name"] == "all"


def test_batch_that_cannot_be_cut() -> None:
    """Tensors of different first dims are refused, with both."""
    with pytest.raises(Refusal, match=r"differ in their first dim \(\[3, 4\]\)"):
        batches.length_of([torch.zeros(3), torch.zeros(4)])
