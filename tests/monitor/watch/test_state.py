"""The state of a run from its files: numbers whose truth is known, troubles first, and files that are cut off."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.monitor.watch import fleet

from echelon.monitor.watch.live import Live, Tail


def live(path: Path) -> Live:
    return Live("train-8f65", str(path))


def test_numbers(tmp_path: Path) -> None:
    state = live(fleet.write(tmp_path / "run", num_nodes=4, ranks_per_node=8)).look()
    assert (state.num_ranks, state.steps, len(state.nodes), len(state.ranks)) == (32, 600, 4, 32)
    assert state.steps_per_second == pytest.approx(10.0)
    assert state.samples_per_second == pytest.approx(10.0 * 32 * 8)
    assert state.shares == pytest.approx({"data": 0.3, "communication": 0.2, "other lines": 0.5})
    assert state.ranks[0].busy == pytest.approx(0.5)
    assert state.losses[-1] == pytest.approx(0.1)
    assert [device.busy for device in state.nodes[0].devices] == [85.0] * 8
    assert all(rank.excess == 0 for rank in state.ranks)


def test_worst_is_first(tmp_path: Path) -> None:
    """A lost node, then a node with a slow rank, then the others in their order."""
    state = live(fleet.write(tmp_path / "run", num_nodes=5, ranks_per_node=2, slow=7, lost=2)).look()
    assert [node.name[-1] for node in state.worst_first()] == ["2", "3", "0", "1", "4"]
    assert state.ranks[7].excess == pytest.approx(0.95 / 0.8 - 1)
    assert [rank.status for rank in state.nodes[2].ranks] == ["lost", "lost"]
    assert state.facts == ["00:00:50 nid005002 is lost: the connection ended"]


def test_attempt_that_follows_begins_anew(tmp_path: Path) -> None:
    path = fleet.write(tmp_path / "run", num_nodes=2, ranks_per_node=2)
    run = live(path)
    run.look()
    with (path / "events.jsonl").open("a") as events:
        for event in (
            {"time": fleet.BEGAN + 70, "event": "restart", "cause": "hang", "error": ""},
            {"time": fleet.BEGAN + 71, "event": "attempt", "number": 1, "ranks": 2},
            {"time": fleet.BEGAN + 72, "event": "started", "rank": 0, "node": "nid005001"},
            {"time": fleet.BEGAN + 73, "event": "exit", "rank": 0, "status": -9},
        ):
            events.write(json.dumps(event) + "\n")
    state = run.look()
    assert (state.attempt, state.num_ranks) == (1, 2)
    assert [(node.name, [rank.status for rank in node.ranks]) for node in state.worst_first() if node.ranks] == [
        ("nid005001", ["failed"])
    ]
    assert state.facts == ["00:01:10 restart after: hang"]


@given(cut=st.integers(0, 4000), parts=st.lists(st.integers(1, 3000), max_size=8))
@settings(max_examples=30, deadline=None)
def test_files_that_grow_and_are_cut(tmp_path_factory: pytest.TempPathFactory, cut: int, parts: list[int]) -> None:
    """However a file grows, each of its whole lines is read once."""
    folder = tmp_path_factory.mktemp("run")
    whole = (fleet.write(folder / "whole", num_nodes=2, ranks_per_node=2) / "samples.jsonl").read_bytes()[: 4000 - cut]
    tail = Tail(str(folder / "grows"))
    lines = tail.look()
    begin = 0
    for size in (*parts, len(whole)):
        with (folder / "grows").open("ab") as file:
            file.write(whole[begin : begin + size])
        begin = min(begin + size, len(whole))
        lines += tail.look()
    assert lines == [json.loads(line) for line in whole[: whole.rfind(b"\n") + 1].splitlines()[1:]]


def test_lines_of_others_change_nothing(tmp_path: Path) -> None:
    path = fleet.write(tmp_path / "run", num_nodes=1, ranks_per_node=2)
    run = live(path)
    before = run.look().steps
    with (path / "samples.jsonl").open("a") as samples:
        samples.write(
            'not JSON\n[1]\n{"time": "late"}\n{"time": 1, "attempt": {}}\n{"time": 1, "attempt": 0, "ranks": -1}\n'
        )
        samples.write('{"time": 1800000099, "attempt": 0, "steps": 700, "ranks": 2, "measures": {"loss": ["x", 1]}}\n')
    assert run.look().steps in (before, 700)


def test_newest_loss_is_not_finite(tmp_path: Path) -> None:
    """A rank tells no such loss, only how often it had one: the last finite loss is shown no longer."""
    path = fleet.write(tmp_path / "run", num_nodes=1, ranks_per_node=2)
    line = {"time": 1800000099, "attempt": 0, "steps": 700, "ranks": 2, "loss": 0.5}
    with (path / "samples.jsonl").open("a") as samples:
        samples.write(json.dumps({**line, "measures": {"losses_not_finite": [0, 3], "loss": [0.5, None]}}) + "\n")
    state = live(path).look()
    assert [str(rank.loss) for rank in state.ranks] == ["0.5", "nan"]
    assert str(state.loss) == "nan"


def test_old_samples_of_many_ranks_are_read_without_their_measures(tmp_path: Path) -> None:
    """The state is the same, and only the newest lines have the measures."""
    path = fleet.write(tmp_path / "run", num_nodes=64, ranks_per_node=48, samples=30)
    whole, short = Tail(str(path / "samples.jsonl")).look(), Tail(str(path / "samples.jsonl"), num_whole=8).look()
    assert [{**line, "measures": None} for line in whole] == [{**line, "measures": None} for line in short]
    assert ["measures" in line for line in short] == [False] * 22 + [True] * 8
    assert live(path).look() == live(path).take([*Tail(str(path / "events.jsonl")).look(), *whole])
