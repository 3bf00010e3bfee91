"""Tensors that are spread have their own bits when they are whole again, and travel together."""

import pytest
import torch
from tests.train.strategies import ranks, spread

BOOLS = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9), reason="PyTorch 2.6 joins no bools over gloo"
)


@pytest.mark.parametrize(
    ("most_bytes", "num_messages"),
    [(1 << 20, 7), (150, 7), pytest.param(0, 0, marks=BOOLS, id="each element by itself")],
)
def test_bits_and_messages(most_bytes: int, num_messages: int) -> None:
    """Those of one kind, cut along one axis, share messages of so many bytes; by itself each is joined by PyTorch."""
    for are_equal, messages in ranks.run(4, spread.made_whole, most_bytes):
        assert all(are_equal), are_equal
        assert messages == num_messages


def test_ranks_that_have_no_part() -> None:
    """Who is not of the mesh sends nothing, and has nothing."""
    for are_as_expected in ranks.run(4, spread.of_a_mesh_of_others):
        assert are_as_expected == [True, True]


def test_state_of_a_model_is_gathered_once() -> None:
    """However deep its modules lie, a state is one message."""
    for is_whole, num_messages, num_tensors in ranks.run(2, spread.state_of_nested_modules):
        assert is_whole
        assert (num_messages, num_tensors) == (1, 6)


def test_state_that_a_hook_asks_for_is_whole() -> None:
    """It is no part of the state around it."""
    assert ranks.run(2, spread.state_that_a_hook_asks_for) == [True, True]
