"""The global generators of Python and numpy, kept and put back as the libraries would."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from echelon.train.rng import states as random_states

numpy = pytest.importorskip("numpy")

DRAWS: list[Callable[[], Any]] = [
    lambda: (random.random(), numpy.random.rand()),
    lambda: numpy.random.randn(),  # the first of two numbers, then the second, which draws nothing
    lambda: random.gauss(0, 1),  # so here
    lambda: (random.getrandbits(32 * 700), numpy.random.rand(624 * 2)),
    lambda: (random.sample(range(9), 5), numpy.random.permutation(5).tolist()),
    lambda: (random.seed(3), numpy.random.seed(3)),
    lambda: None,
]


def expected() -> str:
    """Return what the next draws give, without drawing."""
    state, of_python = numpy.random.get_state(), random.getstate()
    numbers = repr((numpy.random.randn(3).tolist(), numpy.random.rand(2).tolist(), random.gauss(0, 1), random.random()))
    numpy.random.set_state(state)
    random.setstate(of_python)
    return numbers


@given(st.lists(st.one_of(st.integers(0, len(DRAWS) - 1), st.just("keep"), st.integers(100, 104)), max_size=30))
@example([5, 1, 1, "keep", 5, 1, "keep", 101])  # the same words, once with a number that numpy keeps
@example([5, 2, 2, "keep", 5, 2, "keep", 101])  # and once with one that Python keeps
@settings(max_examples=1000, deadline=None)
def test_states_come_back(words: list[Any]) -> None:
    """Whatever is drawn in between, a state that was kept gives again the numbers that it would have given."""
    kept: list[tuple[Any, str]] = []
    for word in words:
        if word == "keep":
            kept.append((random_states.keep(), expected()))
        elif word >= 100:
            if kept:
                state, then = kept[(word - 100) % len(kept)]
                random_states.put(state)
                assert expected() == then
        else:
            DRAWS[word]()
    for state, then in kept:
        random_states.put(state)
        assert expected() == then


def test_memory_is_found() -> None:
    """With this Python and numpy the states are copied as memory, and not made into objects."""
    kept = random_states.keep()
    assert isinstance(kept.numpy, bytes)
    assert isinstance(kept.python[0], bytes)


def test_equal_or_not() -> None:
    """Two states are equal until something is drawn, also where that is the number that was kept."""
    for draw in (lambda: numpy.random.randn(), lambda: random.gauss(0, 1)):
        numpy.random.seed(1)
        random.seed(1)
        draw()
        first, again = random_states.keep(), random_states.keep()
        assert random_states.is_same(first, again)
        draw()
        assert not random_states.is_same(first, random_states.keep())


def test_generator_of_another_kind() -> None:
    """A script may have put another generator behind numpy.random."""
    old = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.PCG64(5))
    try:
        state, then = random_states.keep(), numpy.random.rand()
        assert random_states.is_same(state, state)
        random_states.put(state)
        assert numpy.random.rand() == then
    finally:
        numpy.random.set_bit_generator(old)


def test_without_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a trial does not find the memory, the libraries' own functions do it."""
    nowhere = random_states._Place(())
    monkeypatch.setattr(random_states, "_place_of_python", lambda: nowhere)
    monkeypatch.setattr(random_states, "_place_of_numpy", lambda *_: nowhere)
    numpy.random.randn()
    random.gauss(0, 1)
    state, then = random_states.keep(), expected()
    DRAWS[0]()
    assert not random_states.is_same(state, random_states.keep())
    random_states.put(state)
    assert random_states.is_same(state, random_states.keep())
    assert expected() == then


def test_states_for_another_process() -> None:
    """What the libraries give can be sent to a process whose memory lies elsewhere."""
    states, then = random_states.portable(), expected()
    DRAWS[0]()
    random_states.put_portable(states)
    assert expected() == then
