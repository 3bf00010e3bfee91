"""A slow node is found in few rounds, whatever the number of nodes."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echelon.bandwidth.narrow import Group, Measure, by_round, most_rounds, narrow

SIZES = tuple(range(2, 131))


def slow_if(bad: set[int]) -> Measure:
    return lambda groups: [bool(bad & set(group)) for group in groups]


@pytest.mark.parametrize("num_nodes", SIZES)
def test_each_single_bad_node_is_found(num_nodes: int) -> None:
    """Every node in turn is the bad one: found, alone, within ⌈log2 N⌉ + 1 rounds."""
    for bad in range(num_nodes):
        found = narrow(num_nodes, slow_if({bad}))
        assert found.bad == (bad,), (num_nodes, bad, found)
        assert not found.undecided or num_nodes < 4
        assert found.num_rounds <= math.ceil(math.log2(num_nodes)) + 1 == most_rounds(num_nodes)


@pytest.mark.parametrize("num_nodes", (1, *SIZES))
def test_no_node_stays_untested(num_nodes: int) -> None:
    """Each node is measured in the first round already, in one group only; good nodes need no second one."""
    found, rounds = by_round(num_nodes, slow_if(set()))
    assert sorted(node for group in rounds[0] for node in group) == list(range(num_nodes))
    assert (found.bad, found.between, found.num_rounds) == ((), (), 1)


@settings(deadline=None, max_examples=300)
@given(st.integers(1, 300), st.data())
def test_several_bad_nodes(num_nodes: int, data: st.DataObject) -> None:
    """No good node is ever accused, rounds stay within the bound, and groups of a round share no node."""
    bad = data.draw(st.sets(st.integers(0, num_nodes - 1), max_size=num_nodes))
    found, rounds = by_round(num_nodes, slow_if(bad))
    assert set(found.bad) <= bad
    assert bad <= set(found.bad) | set(found.undecided)
    assert found.num_rounds == len(rounds) <= most_rounds(num_nodes)
    for groups in rounds:
        members = [node for group in groups for node in group]
        assert len(members) == len(set(members))


@settings(deadline=None, max_examples=200)
@given(st.integers(8, 300), st.data())
def test_a_quarter_of_bad_nodes_is_found_whole(num_nodes: int, data: st.DataObject) -> None:
    """With a quarter bad at most, nothing stays undecided."""
    bad = data.draw(st.sets(st.integers(0, num_nodes - 1), max_size=num_nodes // 4))
    found = narrow(num_nodes, slow_if(bad))
    assert set(found.bad) == bad
    assert not found.undecided


@settings(deadline=None)
@given(st.integers(4, 200), st.data())
def test_what_lies_between_two_good_nodes(num_nodes: int, data: st.DataObject) -> None:
    """A pair that is slow, both of which are well with others, accuses neither."""
    first = data.draw(st.integers(0, (num_nodes - 4) // 2)) * 2
    link = {first, first + 1}
    found = narrow(num_nodes, lambda groups: [link <= set(group) for group in groups])
    assert found.bad == ()
    assert found.between in (((first, first + 1),), ((first, first + 1, first + 2),))


def test_rounds_end_when_all_is_known() -> None:
    """One bad node among a thousand costs two rounds, not eleven."""
    asked: list[list[Group]] = []

    def measure(groups):
        asked.append(list(groups))
        return [777 in group for group in groups]

    assert narrow(1024, measure).bad == (777,)
    assert [len(groups) for groups in asked] == [512, 2]
