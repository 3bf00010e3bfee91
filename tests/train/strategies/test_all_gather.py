"""All-gather in few turns: any number of them, in any group, beside messages of the script's own."""

import pytest
import torch
from tests.train.strategies import gathering, ranks

from echelon.train.wire import gather


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 6, 8])
def test_every_rank_has_all_rows(num_ranks: int) -> None:
    """Also where the ranks are no power of two, so that what is sent goes around the end."""
    assert ranks.run(num_ranks, gathering.gathered) == [True] * num_ranks


def test_beside_a_message_of_the_script() -> None:
    """Ours have a tag: what a script waits for is not taken from them."""
    assert ranks.run(2, gathering.beside_own_message) == [[1.0] * 3, [0.0] * 3]


def test_a_sum_has_the_same_bits_on_all_ranks() -> None:
    """Ranks are added in their order, in a group as well."""
    found = ranks.run(5, gathering.sums, 7)
    every = [torch.randn(7, generator=torch.Generator().manual_seed(rank), dtype=torch.float64) for rank in range(5)]
    all_of_them = torch.stack(every).sum(0).numpy().tobytes().hex()
    some = torch.stack([every[rank] for rank in (1, 2, 4)]).sum(0).numpy().tobytes().hex()
    assert found == [[all_of_them, *([some] if rank in (1, 2, 4) else [])] for rank in range(5)]


def test_a_large_sum_is_right() -> None:
    """It is left to gloo, which adds up in an order of its own."""
    size = gather.SMALL_BYTES // 8
    every = [torch.randn(size, generator=torch.Generator().manual_seed(rank), dtype=torch.float64) for rank in range(5)]
    for found in ranks.run(5, gathering.sums, size):
        total = torch.frombuffer(bytearray.fromhex(found[0]), dtype=torch.float64)
        assert torch.allclose(total, torch.stack(every).sum(0))


@pytest.mark.parametrize(
    ("local_size", "width", "is_by_turns"), [("3", 8, True), ("2", 8, True), ("3", 256, True), ("2", 256, False)]
)
def test_weights_are_gathered_by_turns(local_size: str, width: int, is_by_turns: bool) -> None:
    """But for large ones on several nodes, which would cross the network more often."""
    for seen, is_right in ranks.run(3, gathering.spread, local_size, width):
        assert is_right
        assert (seen >= 2) == is_by_turns  # the last layer is small
