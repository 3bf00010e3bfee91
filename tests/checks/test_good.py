"""Good nodes are let pass."""

import pytest
from tests.checks import nodes


@pytest.mark.parametrize("num_nodes", [1, 4])
@pytest.mark.parametrize("good", nodes.GOOD, ids=lambda good: good.name)
def test_a_good_node_is_let_pass(forest: nodes.Forest, good: nodes.Good, num_nodes: int) -> None:
    """Documented nodes, alone and four together, have no finding of severity warning or above."""
    one = nodes.survey(good, forest.tree(good))
    assert not one.silent
    assert len(one.devices.visible) == (good.num_devices or len(one.devices.devices))
    findings = nodes.judge(good, nodes.several(one, num_nodes))
    assert [each for each in findings if each.severity != "note"] == []
