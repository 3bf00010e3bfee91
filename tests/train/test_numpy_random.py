"""numpy's global generator, kept and put back as numpy itself would."""

import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from echelon.train import numpy_random

numpy = pytest.importorskip("numpy")

DRAWS: list[Callable[[], Any]] = [
    lambda: numpy.random.rand(),
    lambda: numpy.random.randn(),  # the first of two numbers, then the second, which draws nothing
    lambda: numpy.random.rand(624 * 2),
    lambda: numpy.random.permutation(5).tolist(),
    lambda: numpy.random.seed(3),
    lambda: None,
]


def expected() -> str:
    """Return what the next draws give, without drawing."""
    state = numpy.random.get_state()
    numbers = repr((numpy.random.randn(3).tolist(), numpy.random.rand(2).tolist()))
    numpy.random.set_state(state)
    return numbers


@given(st.lists(st.one_of(st.integers(0, len(DRAWS) - 1), st.just("keep"), st.integers(100, 105)), max_size=30))
@example([4, 1, 1, "keep", 4, 1, "keep", 101])  # the same words, once with a number that numpy keeps
@settings(max_examples=1000, deadline=None)
def test_states_come_back(words: list[Any]) -> None:
    """Whatever is drawn in between, a state that was kept gives again the numbers that it would have given."""
    kept: list[tuple[Any, str]] = []
    for word in words:
        if word == "keep":
            kept.append((numpy_random.keep(), expected()))
        elif word >= 100:
            if kept:
                state, then = kept[(word - 100) % len(kept)]
                numpy_random.put(pickle.loads(pickle.dumps(state)), numpy_random.keep() if word % 2 else None)
                assert expected() == then
        else:
            DRAWS[word]()
    for state, then in kept:
        numpy_random.put(state, numpy_random.keep())
        assert expected() == then


def test_equal_or_not() -> None:
    """Two states are equal until something is drawn, also where that is the number that numpy had kept."""
    numpy.random.seed(1)
    numpy.random.randn()
    first, again = numpy_random.keep(), numpy_random.keep()
    assert numpy_random.is_same(first, again)
    numpy.random.randn()
    assert not numpy_random.is_same(first, numpy_random.keep())


def test_generator_of_another_kind() -> None:
    """A script may have put another generator behind numpy.random."""
    old = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.PCG64(5))
    try:
        state, then = numpy_random.keep(), numpy.random.rand()
        numpy_random.put(state)
        assert numpy.random.rand() == then
    finally:
        numpy.random.set_bit_generator(old)
