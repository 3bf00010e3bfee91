"""Tensors that are spread have their own bits when they are whole again, and travel together."""

import pytest
from tests.train.parallel import ranks, spread


@pytest.mark.parametrize(("most_bytes", "num_messages"), [(1 << 20, 6), (0, 13)])
def test_bits_and_messages(most_bytes: int, num_messages: int) -> None:
    """Those that are cut along one axis and of one kind of number travel in one message, the others each in its own."""
    for are_equal, messages in ranks.run(4, spread.made_whole, most_bytes):
        assert all(are_equal), are_equal
        assert messages == num_messages
