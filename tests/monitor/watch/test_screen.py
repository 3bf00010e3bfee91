"""The pictures of `echelon watch`: within the terminal, readable without colour, and keys that lead through them."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.monitor.watch import fleet

from echelon.monitor.watch.live import Live
from echelon.monitor.watch.screen import PLAIN_BLOCKS, View, draw, press, sparkline
from echelon.monitor.watch.state import RunState


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> RunState:
    folder = tmp_path_factory.mktemp("fleet")
    run = Live("train-8f65", str(fleet.write(folder / "run", num_nodes=128, ranks_per_node=8, slow=77, lost=100)))
    return run.look()


def after(state: RunState, keys: str) -> View:
    """Return the view after some keys."""
    view = View()
    for key in keys.split():
        assert press(key, view, state)
    return view


def test_fleet_of_128_nodes_is_one_picture(state: RunState) -> None:
    """In 80 × 24 without colour: the lost node and the slow rank come first."""
    lines = draw(state, View(), 80, 24)
    assert len(lines) == 24
    assert lines[0].startswith("train-8f65 ·  · 00:01:02 · 1024 ranks on 128 nodes · step 600")
    cells = [line for line in lines if "nid" in line]
    assert cells[0].startswith(">nid005100 xxxxxxxx  nid005009 55555!55  nid005000 55555555")
    assert sum(line.count("nid00") for line in cells) >= 40
    assert any("more nodes below" in line for line in lines)


@given(width=st.integers(20, 200), height=st.integers(1, 60), keys=st.sampled_from(["", "enter", "enter enter", "?"]))
@settings(max_examples=60, deadline=None)
def test_picture_fits(state: RunState, width: int, height: int, keys: str) -> None:
    lines = draw(state, after(state, keys), width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_colour_changes_no_letter(state: RunState) -> None:
    for keys in ("", "enter", "enter enter"):
        plain = draw(state, after(state, keys), 100, 30)
        coloured = draw(state, after(state, keys), 100, 30, with_colour=True)
        assert [re.sub(r"\033\[[0-9;]*m", "", line).rstrip() for line in coloured] == plain


def test_keys(state: RunState) -> None:
    view = after(state, "/ 0 0 7 enter")
    assert [node.name for node in view.nodes(state)] == ["nid005007"]
    assert after(state, "down down up").chosen == 1
    assert after(state, "/ x enter").nodes(state) == []
    assert "no node has 'x' in its name" in "\n".join(draw(state, after(state, "/ x enter"), 80, 24))
    slow = draw(state, after(state, "down enter enter"), 80, 24)
    assert any("rank 77 on nid005009 · alive · step 600" in line for line in slow)
    assert any("the others wait for it, 19% of their own time" in line for line in slow)
    assert after(state, "enter enter esc esc esc").level == "fleet"
    assert not press("q", View(), state)


def test_sparkline() -> None:
    assert sparkline([3.0, 3.0, 3.0], 10) == "▁▁▁"
    assert sparkline([1, 2, 3, 4, 5, 6, 7, 8], 8, PLAIN_BLOCKS) == PLAIN_BLOCKS
    assert len(sparkline([float(number) for number in range(1000)], 33)) <= 33
    assert sparkline([], 5) == sparkline([1.0], 0) == ""
